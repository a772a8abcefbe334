"""Storage of homes: live volumes, the archive store, and the jobs that move homes between them."""
