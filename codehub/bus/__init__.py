"""Redis: hints, activity and tickets. Nothing here is the truth; everything here may be lost."""
