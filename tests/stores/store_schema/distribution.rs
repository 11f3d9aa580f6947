//! Whether the keys are distributed over a cluster. `make cluster` has the cluster; here is the server that is none.

use std::fs;
use std::path::PathBuf;

use super::steps;
use harness::operator::oncegate;
use harness::postgres::{self, TestDatabase};

/// A configuration with this database as its store.
pub(super) fn configuration(home: &tempfile::TempDir, database: &TestDatabase, line: &str) -> PathBuf {
    let file = home.path().join("oncegate.toml");
    let store = format!("[store]\nurl = \"{}?sslmode=disable\"\n{line}\n", database.url);
    fs::write(&file, format!("upstream = \"http://127.0.0.1:9\"\n{store}")).unwrap();
    file
}

#[tokio::test]
async fn a_server_without_the_extension_is_refused_where_the_keys_shall_be_distributed() {
    let (home, database) = (tempfile::tempdir().unwrap(), postgres::empty_database().await);
    let file = configuration(&home, &database, "distribute = true");
    for (command, arguments) in [("migrate", &[][..]), ("check", &["--connect"]), ("migrate", &["--print"])] {
        let refused = oncegate(command, &file, arguments).await;
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.err.contains("the database lacks the extension citus"), "{refused:?}");
    }
    let embedded = "upstream = \"http://127.0.0.1:9\"\n[store]\nurl = \"sqlite:a.db\"\ndistribute = true\n";
    fs::write(&file, embedded).unwrap();
    let refused = oncegate("check", &file, &[]).await;
    assert!(refused.err.contains("needs a `url` of PostgreSQL"), "{refused:?}");
    let migrated = oncegate("migrate", &configuration(&home, &database, ""), &[]).await;
    assert_eq!(migrated.code, 0, "{migrated:?}");
}

#[tokio::test]
async fn check_says_what_the_schema_lacks_and_where_the_keys_are() {
    let (home, database) = (tempfile::tempdir().unwrap(), postgres::empty_database().await);
    let file = configuration(&home, &database, "");
    let check = async || oncegate("check", &file, &["--connect"]).await.out;
    let before = check().await;
    let lacks = format!("schema lacks    {}, functions\n", steps().join(", "));
    assert!(before.contains(&lacks), "{before}");
    assert_eq!(oncegate("migrate", &file, &[]).await.code, 0);
    let after = check().await;
    assert!(after.contains("schema lacks    nothing\nkeys            in one database\n"), "{after}");
}
