"""Storage jobs: the program that archives or restores a home, and the code that starts it."""
