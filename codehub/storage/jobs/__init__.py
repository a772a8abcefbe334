"""Storage jobs: the program that moves a home to or from an archive, and the code that starts it."""
