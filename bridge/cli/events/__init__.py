"""Commands about what happens on nodes: events, live and past, and a bundle of all that they tell."""
