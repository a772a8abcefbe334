"""What CodeHub uses of the operating system. Standard library only; imports no other package of CodeHub."""
