"""Database access: connections, transactions, the SQL files, and the meaning of the driver's errors."""
