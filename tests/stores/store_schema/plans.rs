//! PostgreSQL's plans on large tables: no statement reads a whole one.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::statements::{sql_files, statement};
use harness::postgres::TestDatabase;
use harness::store_fixture::StoreFixture;

/// The states of the keys 1000 to 1006 of [`fill`], and of every 1000th key after each.
const STATES: [&str; 7] = ["in_flight", "unknown", "queued", "retryable", "dead", "expired", "completed"];

/// Inserts 50,000 keys, nearly all of them completed, as in a typical table, and requests and audit entries.
async fn fill(database: &TestDatabase) {
    let rows = "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline, settled_at, accepted_at, due_at, expires_at, status,
                                 fields, holder, lookups)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), 1, 1, s.state, t.now - n, t.now, t.now,
             case when s.state <> 'in_flight' then t.now end,
             case when s.state = 'queued' then t.now end, case when s.state = 'queued' then t.now end,
             case when s.state in ('completed', 'expired', 'retryable') then t.now + n::bigint * 60000 end,
             case when s.state = 'completed' then 200 end, case when s.state = 'completed' then '\\x0d0a'::bytea end,
             case when n % 100 = 6 then sha256('h') end, case when n % 100 = 6 then substr(sha256('v'), 1, 16) end
        from generate_series(1, 50000) as n
       cross join (select (extract(epoch from now()) * 1000)::bigint as now) as t
       cross join lateral (select case n % 1000 when 0 then 'in_flight' when 1 then 'unknown' when 2 then 'queued'
                                                when 3 then 'retryable' when 4 then 'dead' when 5 then 'expired'
                                                else 'completed' end as state) as s;
      insert into oncegate.outbox (id, since, attempts_before, secret, sealed)
      select sha256(n::text::bytea), 1000, 0, 's', 'sealed' from generate_series(1, 50000) as n;
      insert into oncegate.events (at, created_at, reserved_at, since, due_at, attempt, id, token, outcome, service, sink, route, key)
      select 1000, 1000, 1000, 1000, case when n % 50 > 0 then 1000 end, 1, sha256((n / 2)::text::bytea), 't', 'unknown', 'shop',
             case when n % 10 = 0 then 'bus' else 'other' end, 'pay', 'k'
        from generate_series(1, 50000) as n;
      insert into oncegate.audit (at, service, actor, action, id, before, after)
      select 1000, 'shop', 'a', 'purge', sha256(n::text::bytea), 'completed', 'none' from generate_series(1, 50000) as n";
    database.client().await.batch_execute(rows).await.unwrap();
}

const ANALYZE: &str = "analyze oncegate.keys, oncegate.outbox, oncegate.audit, oncegate.events";

/// The rows of an explanation.
async fn explain(client: &Client, explain: &str) -> String {
    let explained = client.simple_query(explain).await.unwrap_or_else(|error| panic!("{explain}: {error:?}"));
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    explained.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// A parameter's value in SQL, by its name: about a key of [`fill`], and a caller's
/// estimate of the time that is in 2100.
fn value(name: &str, key: usize) -> String {
    let (id, token) = (format!("sha256('{key}')"), format!("substr(sha256('{key}'), 1, 16)"));
    match name {
        "id" | "_id" | "after" | "from" | "low" => id,
        "high" => "decode(repeat('ff', 32), 'hex')".to_owned(),
        "_new_token" | "_token" | "_seen_token" | "_replaced_token" => token,
        "_no_space" | "_scope" | "scope" => "sha256('s')".to_owned(),
        "holder" | "_holder" | "_seen_holder" => "sha256('h')".to_owned(),
        "fingerprint" | "_fingerprint" => "sha256('f')".to_owned(),
        "_seen_state" => format!("'{}'", STATES[key % 1000]),
        "_fields" | "_no_fields" => "'\\x0d0a'".to_owned(),
        // Without one it is a report that an attempt was not executed.
        "_recovery_point" if key % 1000 < 2 => "null".to_owned(),
        "_nothing" | "_space" | "_key" | "_secret" | "_sealed" | "actor" | "_actor" | "_note" | "_recipe"
        | "_recovery_point" => "'x'".to_owned(),
        "service" | "_service" | "_services" => "'shop'".to_owned(),
        "route" | "_route" => "'pay'".to_owned(),
        "sink" => "'bus'".to_owned(),
        "types" => "'{}'".to_owned(),
        "events" => "'[{\"seq\": 1, \"at\": 1000}]'".to_owned(),
        "_state" => "'completed'".to_owned(),
        "state" => "'dead'".to_owned(),
        "_states" => "'queued,unknown'".to_owned(),
        "_action" => "'resolve'".to_owned(),
        "_redelivered" => "false".to_owned(),
        "_replaced_was_completed" => "true".to_owned(),
        "_status" => "200".to_owned(),
        "as_of" | "_as_of" | "_past_ttl_at" => "4102444800000".to_owned(),
        // The newest keys of a table whose keys are of now.
        "at" | "created_until" => "4102444800000".to_owned(),
        "lookup" => "substr(sha256('v'), 1, 16)".to_owned(),
        "path_length" => "4".to_owned(),
        "limit" | "_limit" => "100".to_owned(),
        "scan_limit" => "1000".to_owned(),
        "_attempt" | "_max_attempts" => "5".to_owned(),
        "instance" | "_instance" | "_inquiry" => "1".to_owned(),
        "_settled_since" | "settled_since" | "created_from" | "purges" | "_purges_seen" | "_hold_ttls_until" => {
            "0".to_owned()
        }
        "_repeat_within_ms" | "_time_limit_ms" | "_ttl_ms" | "_quiet_after_ms" | "quiet_after_ms"
        | "_pause_first_ms" | "_pause_cap_ms" | "_give_up_after_ms" | "expiry_ms" | "_expiry_ms" | "lease_ms"
        | "older_than_ms" | "since_ms" => "1000".to_owned(),
        "scope_low" | "scope_high" | "key" | "before" | "path" | "people_path" | "_trace_id" | "_client_address"
        | "_lookups" | "_path" | "_parts" | "_remember_ms" | "_body" | "_cause" | "_due_ms" | "_accepted_at"
        | "_absences" => "null".to_owned(),
        _ => panic!("the parameter {name} has no value here"),
    }
}

/// The statement of a file with values in the place of its parameters.
fn with_values(sql: &str) -> String {
    let parts = sql_files("sql/parts");
    // Parts have parts.
    let sql = parts.iter().rev().fold(sql.to_owned(), |sql, (name, part)| sql.replace(&format!("{{{name}}}"), part));
    let mut rest = &*sql;
    let mut filled = String::new();
    while let Some(at) = rest.find([':', '$']) {
        let (before, from) = rest.split_at(at);
        let (sign, after) = from.split_at(1);
        let length = after.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_');
        let (name, next) = after.split_at(length.unwrap_or(after.len()));
        filled.push_str(before);
        match (sign, name) {
            ("$", "1") => filled.push_str("array[sha256('5')]"),
            ("$", _) => filled.push_str("1000"),
            _ if name.is_empty() || name == "now" || filled.ends_with(':') => filled.push_str(&format!("{sign}{name}")),
            _ => filled.push_str(&value(name, 5)),
        }
        rest = next;
    }
    filled.push_str(rest);
    statement(filled).for_postgres().to_owned()
}

/// The statements that read keys or events, and the index that each reads them by.
const INDEXES: [(&str, &str); 27] = [
    ("claim_events", "events_waiting"),
    ("count_events", "events_waiting"),
    ("delete_events", "events_pkey"),
    ("discard_events", "events_dead"),
    ("requeue_events", "events_dead"),
    ("count_settled_keys", "keys_pkey"),
    ("count_unsettled_keys", "keys_unsettled"),
    ("crashed_keys", "keys_in_flight"),
    ("current_row", "keys_pkey"),
    ("due_inquiries", "keys_due"),
    ("ended_reports", "keys_pkey"),
    ("expired_keys", "keys_expiring"),
    ("find", "keys_pkey"),
    ("find_parts", "keys_pkey"),
    ("find_reservation", "keys_pkey"),
    ("holder", "keys_pkey"),
    ("holder_keys", "keys_holder"),
    ("list_in_flight", "keys_in_flight"),
    ("list_keys", "keys_created"),
    ("list_keys_by_age", "keys_unsettled"),
    ("list_keys_by_id", "keys_pkey"),
    ("list_keys_by_lookup", "keys_lookups"),
    ("list_keys_in_flight", "keys_in_flight"),
    ("list_settled_keys", "keys_pkey"),
    ("queued_deliveries", "keys_queued"),
    ("unknown_deliveries", "keys_unknown_deliveries"),
    ("list_audit_entries", "audit_of_a_key"),
];

#[tokio::test]
async fn no_select_scans_the_whole_table() {
    let world = StoreFixture::postgres().await;
    fill(world.database()).await;
    let client = world.database().client().await;
    client.batch_execute(ANALYZE).await.unwrap();
    for (name, sql) in sql_files("sql").into_iter().chain(sql_files("postgres/sql")) {
        let expected = INDEXES.iter().find(|(known, _)| *known == name);
        // Those of the start, and one for clusters alone.
        let reads_keys = !["await_durability_of", "has_event_triggers", "has_keys", "nodes"].contains(&&*name)
            && ["oncegate.keys", "oncegate.audit", "oncegate.events as"].iter().any(|table| sql.contains(table));
        let Some((_, index)) = expected else {
            assert!(!reads_keys, "the index of {name} is missing here");
            continue;
        };
        // PostgreSQL 18 sees that no key in flight is dead, and reads none.
        let state = if name == "list_keys_in_flight" { "'in_flight'" } else { "'dead'" };
        let plan = explain(&client, &format!("explain {}", with_values(&sql).replace("'dead'", state))).await;
        let is_used = [format!("{index} on "), format!("on {index} ")].iter().any(|text| plan.contains(text));
        assert!(is_used, "{name}:\n{plan}");
        assert!(!plan.contains("Seq Scan on keys") && !plan.contains("Seq Scan on audit"), "{name}:\n{plan}");
    }
}

/// Inserts 40,000 unknown keys, whose attempts ended two seconds ago. Half of them were accepted for delivery: of
/// those, 15 are due and quiet, and 5,000 are due and not quiet.
async fn fill_with_unknown(database: &TestDatabase) {
    let rows = "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), 1, 1, 'unknown', t.now, t.now,
             case when n % 8 = 1 then t.now + 3600000 else t.now end, t.now,
             case when n % 2 = 1 then t.now end,
             case when n % 8 in (3, 5, 7) and n > 100040 then t.now + 3600000 end
        from generate_series(100001, 140000) as n
       cross join (select (extract(epoch from now()) * 1000)::bigint - 2000 as now) as t";
    database.client().await.batch_execute(rows).await.unwrap();
}

#[tokio::test]
async fn a_pick_up_reads_no_unknown_key_that_is_not_due() {
    let world = StoreFixture::postgres().await;
    fill(world.database()).await;
    fill_with_unknown(world.database()).await;
    let client = world.database().client().await;
    client.batch_execute(ANALYZE).await.unwrap();
    let files = sql_files("postgres/sql");
    let select = |name: &str| &files.iter().find(|(file, _)| file == name).unwrap().1;
    let skip_locked = " for no key update of k skip locked";
    for (name, quiet_after, due) in [
        ("unknown_deliveries", "1000::bigint", 15.0),
        ("unknown_deliveries", "null::bigint", 32.0),
        ("queued_deliveries", "", 32.0),
    ] {
        let sql = select(name).replace(":quiet_after_ms", quiet_after).replace(":limit", "32");
        let sql = with_values(&sql) + skip_locked;
        client.batch_execute("begin").await.unwrap();
        let explained = explain(&client, &format!("explain (analyze, costs off, timing off, format json) {sql}")).await;
        client.batch_execute("rollback").await.unwrap();
        let plan: serde_json::Value = serde_json::from_str(&explained).unwrap();
        let mut read = 0.0;
        rows_read(&plan, "keys", &mut read);
        assert_eq!(read, due, "{name} {quiet_after}\n{plan:#}");
    }
}

/// Adds up the rows of a table that a plan's nodes have read, those that a filter has dropped included.
fn rows_read(plan: &serde_json::Value, table: &str, sum: &mut f64) {
    if plan["Relation Name"] == table {
        let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
        let rows = number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
        *sum += rows * number("Actual Loops");
    }
    let children = plan.as_array().into_iter().flatten().chain(plan["Plans"].as_array().into_iter().flatten());
    for child in children.chain(plan.get("Plan")) {
        rows_read(child, table, sum);
    }
}

/// Calls of every function about keys in every state.
async fn calls(client: &Client) -> Vec<String> {
    let functions = "
      select p.proname::text, (p.proargnames)[1:p.pronargs]::text[],
             array(select format_type(t.oid, null) from unnest(p.proargtypes) as t (oid))::text[]
        from pg_catalog.pg_proc as p
       where p.pronamespace = 'oncegate'::regnamespace and p.proname ~ '_[0-9a-f]{8}$'";
    let mut calls = Vec::new();
    for row in client.query(functions, &[]).await.unwrap() {
        let (function, names, types): (String, Vec<String>, Vec<String>) = (row.get(0), row.get(1), row.get(2));
        for key in 1000..1000 + STATES.len() {
            let argument = |(name, kind): (&String, &String)| {
                let value = match &**kind {
                    "bigint" if name == "_id" => "7".to_owned(), // an instance
                    kind if kind.ends_with("[]") => format!("array[{}]", value(name, key)),
                    _ => value(name, key),
                };
                format!("{name} => {value}::{kind}")
            };
            let arguments: Vec<String> = names.iter().zip(&types).map(argument).collect();
            calls.push(format!("select * from oncegate.{function}({})", arguments.join(", ")));
        }
    }
    calls
}

/// Makes each call in a transaction that is rolled back. Returns those that have scanned a whole table.
async fn scanning<'a>(client: &Client, calls: &'a [String]) -> Vec<&'a str> {
    let scans = async || {
        let sql = "select pg_stat_get_xact_numscans('oncegate.keys'::regclass)
                        + pg_stat_get_xact_numscans('oncegate.outbox'::regclass)
                        + pg_stat_get_xact_numscans('oncegate.audit'::regclass)";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let mut scanning = Vec::new();
    for call in calls {
        client.batch_execute("begin").await.unwrap();
        let before = scans().await;
        client.batch_execute(call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
        if scans().await != before {
            scanning.push(&**call);
        }
        client.batch_execute("rollback").await.unwrap();
    }
    scanning
}

#[tokio::test]
async fn no_function_scans_a_whole_table_also_by_a_plan_that_was_made_while_it_was_empty() {
    let world = StoreFixture::postgres().await;
    let (early, late) = (world.database().client().await, world.database().client().await);
    let calls = calls(&early).await;
    assert!(calls.len() > 100, "{calls:#?}");
    // Of each function more often than a session needs before it may switch to a generic plan.
    scanning(&early, &calls).await;
    fill(world.database()).await;
    assert_eq!(scanning(&early, &calls).await, [] as [&str; 0], "by plans for empty tables");
    late.batch_execute(ANALYZE).await.unwrap();
    for client in [early, late] {
        assert_eq!(scanning(&client, &calls).await, [] as [&str; 0], "by plans for large tables");
    }
}
