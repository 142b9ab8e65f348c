"""Key files, bundles and backups as text and back."""
