"""What a member of a founded farm does by itself: report, keep time, measure, publish."""
