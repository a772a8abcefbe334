"""Redis: event hints, activity and tickets. CodeHub keeps working if Redis loses all of it."""
