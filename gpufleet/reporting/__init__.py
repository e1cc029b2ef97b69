"""How results look: tables and the live view for people, JSON documents for programs. No decisions are made here."""
