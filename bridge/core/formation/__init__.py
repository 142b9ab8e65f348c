"""How routers that discovered each other found one farm."""
