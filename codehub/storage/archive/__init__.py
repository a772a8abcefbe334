"""Archive store: archives of homes in a local directory or an S3-compatible service."""
