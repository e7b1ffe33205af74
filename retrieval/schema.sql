-- The tables of passages.sqlite.
CREATE TABLE IF NOT EXISTS passages (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL,
  text TEXT NOT NULL, source TEXT NOT NULL, section TEXT NOT NULL, year INTEGER, licence TEXT NOT NULL,
  document TEXT NOT NULL, digest BLOB NOT NULL, owner TEXT NOT NULL, bibliography TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS passages_document ON passages (document) WHERE document != '';
CREATE INDEX IF NOT EXISTS passages_digest ON passages (digest);
CREATE INDEX IF NOT EXISTS passages_owner ON passages (owner);
CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, position INTEGER NOT NULL,
  complete INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS skipped (place TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS left_out (place TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, version TEXT NOT NULL, part TEXT NOT NULL,
  reading TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS documents_part ON documents (part);
CREATE TABLE IF NOT EXISTS aliases (alias TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (alias, name));
CREATE INDEX IF NOT EXISTS aliases_name ON aliases (name);
CREATE TABLE IF NOT EXISTS seen (name TEXT NOT NULL, part TEXT NOT NULL, PRIMARY KEY (name, part));
CREATE TABLE IF NOT EXISTS withdrawn (name TEXT PRIMARY KEY, kind TEXT NOT NULL, version TEXT NOT NULL,
  reason TEXT NOT NULL, asked TEXT NOT NULL, part TEXT NOT NULL, owner TEXT NOT NULL);
