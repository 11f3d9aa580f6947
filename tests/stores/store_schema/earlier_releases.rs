//! Stores of earlier releases, as `scripts/release-fixture` has made them with the release itself: this version
//! migrates each, and answers every stored key as that release did.
//!
//! A folder of `tests/fixtures` is a release. It has a folder for each service with its configuration, its store as SQL
//! (`postgres.sql`, `sqlite.sql`) and that release's own answers from this store (`postgres.json`, `sqlite.json`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use harness::postgres::{self, TestDatabase};
use harness::{Proxy, Store, Upstream};

mod content;
mod observed;
mod scenario;

use content::StoreContent;
use observed::Observed;
use scenario::Scenario;

/// A service of a release whose store is kept.
struct Service {
    folder: PathBuf,
    name: &'static str,
}

impl Service {
    /// Both services of a release: one stores in plain text, the other one encrypted.
    fn of(release: &Path) -> [Self; 2] {
        ["plain", "sealed"].map(|name| Self { folder: release.join(name), name })
    }

    fn configuration(&self) -> String {
        self.read("oncegate.toml")
    }

    fn read(&self, file: &str) -> String {
        let path = self.folder.join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.join(file), text).unwrap();
    }

    async fn start(&self, store: &Store, upstream: &Upstream) -> Proxy {
        Proxy::from_file_text(&self.configuration(), &store.url(), upstream.address).start().await
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn releases() -> Vec<PathBuf> {
    let releases: Vec<_> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!releases.is_empty(), "no release has a fixture");
    releases
}

/// An empty store of each kind, with the name of its files.
async fn empty_stores() -> [(&'static str, Store); 2] {
    [("postgres", Store::Postgres(postgres::empty_database().await)), ("sqlite", Store::sqlite())]
}

/// Starts this version on a stored release, and returns what it says about each key.
async fn observe(service: &Service, store: &Store, content: &StoreContent, scenario: &Scenario) -> Value {
    content.load(store).await;
    let upstream = Upstream::start().await;
    let proxy = service.start(store, &upstream).await;
    let observed = Observed::of(&proxy, &upstream, scenario).await;
    let is_of_routes = |line: &Value| line["message"].as_str().unwrap_or_default().contains("at the last start");
    let warned = proxy.logged().into_iter().find(|line| line["level"] == "WARN" && is_of_routes(line));
    assert_eq!(warned, None, "the configuration finds its keys in another way");
    observed.0
}

#[tokio::test]
async fn every_key_of_an_earlier_release_is_answered_as_that_release_did() {
    for release in releases() {
        for service in Service::of(&release) {
            for (kind, store) in empty_stores().await {
                let content = StoreContent(service.read(&format!("{kind}.sql")));
                let recorded: Value = serde_json::from_str(&service.read(&format!("{kind}.json"))).unwrap();
                let scenario = Scenario::from_json(&recorded["scenario"]);
                assert!(scenario.questions.len() >= 15, "the questions are not found");
                let observed = observe(&service, &store, &content, &scenario).await;
                let differences = observed::differences(&recorded["observed"], &observed);
                let place = format!("{} {} {kind}", release.display(), service.name);
                assert!(differences.is_empty(), "{place}:\n{}", differences.join("\n"));
            }
        }
    }
}

#[tokio::test]
async fn the_columns_of_times_have_the_same_names_in_both_stores() {
    let Store::Postgres(TestDatabase { url, .. }) = Store::postgres().await else { unreachable!() };
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // All integers that are no times, and the week, which stays a Monday.
    let numbers = [
        "batch",
        "body_max",
        "count",
        "generation",
        "id",
        "instance",
        "purges_seen",
        "remember_ms",
        "seq",
        "ttl_ms",
        "value",
        "week",
    ];
    let sql = "select table_name::text, column_name::text from information_schema.columns \
               where table_schema = 'oncegate' and (data_type like 'timestamp%' or data_type = 'bigint') order by 1, 2";
    let mut times: Vec<(String, String)> =
        client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    times.retain(|(_, column)| !numbers.contains(&&**column));
    let sql = "select t.name, c.name from sqlite_schema as t join pragma_table_info(t.name) as c
                where t.type = 'table' and c.type collate nocase = 'integer' order by 1, 2";
    let sqlite = super::sqlite_in_memory();
    let mut rows = sqlite.prepare(sql).unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let of_sqlite: Vec<(String, String)> = rows.map(Result::unwrap).collect();
    assert!(times.len() > 10, "{times:?}");
    for (table, column) in &times {
        assert!(content::is_time(column), "{table}.{column} is a time by its type only");
        assert!(of_sqlite.contains(&(table.clone(), column.clone())), "{table}.{column} has another name in SQLite");
    }
    for (table, column) in of_sqlite.into_iter().filter(|(_, column)| content::is_time(column)) {
        assert!(times.contains(&(table.clone(), column.clone())), "{table}.{column} has another name in PostgreSQL");
    }
}

/// Writes the fixture of this version; see `scripts/release-fixture`.
#[tokio::test]
#[ignore = "scripts/release-fixture runs it, once for each release"]
async fn write_the_fixture_of_this_version() {
    for service in Service::of(&fixtures().join(env!("CARGO_PKG_VERSION"))) {
        for (kind, store) in empty_stores().await {
            let scenario = scenario::perform(&service, &store).await;
            let content = StoreContent::of(&store).await;
            let (_, copy) = empty_stores().await.into_iter().find(|(other, _)| *other == kind).unwrap();
            let observed = observe(&service, &copy, &content, &scenario).await;
            let recorded = serde_json::json!({ "scenario": scenario.to_json(), "observed": observed });
            service.write(&format!("{kind}.sql"), &content.0);
            service.write(&format!("{kind}.json"), &(in_lines(&recorded, 3) + "\n"));
        }
    }
}

/// JSON with a line for each value of this depth, so that a change shows as a changed line.
fn in_lines(json: &Value, depth: usize) -> String {
    let inside = |value: &Value| in_lines(value, depth - 1);
    match json {
        Value::Object(members) if depth > 0 => {
            let members: Vec<_> = members.iter().map(|(name, value)| format!("{name:?}: {}", inside(value))).collect();
            format!("{{\n{}\n}}", members.join(",\n"))
        }
        Value::Array(elements) if depth > 0 => {
            format!("[\n{}\n]", elements.iter().map(inside).collect::<Vec<_>>().join(",\n"))
        }
        value => value.to_string(),
    }
}
