"""The watch over every server of every farm: sessions, health with hysteresis, missing reports."""
