"""Commands about events on nodes: live and past ones, and a bundle for fault analysis."""
