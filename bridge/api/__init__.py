"""What operators and programs see of a node: views, requests and answers, and their JSON."""
