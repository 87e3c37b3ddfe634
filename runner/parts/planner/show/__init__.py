"""How a plan looks: tables for people, JSON for tools. No figure is made here."""
