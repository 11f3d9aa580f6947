// Idempotency by Idempotency-Key inside of a service, in its own SQLite file: in two commits, each on disk before it counts.
import Database from "better-sqlite3";
import { answer, identify } from "./idempotency.mjs";

const SCHEMA = `
create table if not exists idempotency_keys (
    caller blob not null,
    key text not null,
    fingerprint blob not null,
    status integer,
    body text,
    created_at integer not null default (unixepoch()),
    primary key (caller, key)
) without rowid;
create index if not exists idempotency_keys_age on idempotency_keys (created_at);
`;

/** Returns `once(request, execute)`: it executes the first request of a key, and answers the others with the stored response. */
export function idempotency(file) {
  const database = new Database(file);
  database.pragma("journal_mode = wal");
  database.pragma("synchronous = full");
  database.exec(SCHEMA);
  const reserve = database.prepare(
    "insert into idempotency_keys (caller, key, fingerprint) values (?, ?, ?) on conflict do nothing",
  );
  const complete = database.prepare("update idempotency_keys set status = ?, body = ? where caller = ? and key = ?");
  const release = database.prepare("delete from idempotency_keys where caller = ? and key = ?");
  const find = database.prepare("select fingerprint, status, body from idempotency_keys where caller = ? and key = ?");
  return async (request, execute) => {
    const { id, fingerprint } = identify(request);
    if (reserve.run(...id, fingerprint).changes === 0) return answer(find.get(...id), fingerprint);
    try {
      const response = await execute();
      complete.run(response.status, response.body, ...id);
      return response;
    } catch (error) {
      release.run(...id);
      throw error;
    }
  };
}
