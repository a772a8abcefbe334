"""Archives: the object stores, and what makes an archive of objects in one."""
