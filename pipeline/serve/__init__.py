"""What people and other programs get of the tables: the report, and metrics of the run itself."""
