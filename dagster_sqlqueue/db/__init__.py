"""The database: its connections and transactions, the SQL files, what its errors mean."""
