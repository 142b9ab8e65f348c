"""The recent history of a farm as one node observes it: changes of states, and a sample of figures in each minute."""
