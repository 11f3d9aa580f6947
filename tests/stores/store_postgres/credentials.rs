//! A URL of the store that changes while the proxy runs: its password, its user, its host, and its database.

use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use harness::client::Request;
use harness::postgres::{self, Cluster, TestDatabase, owner};
use harness::proxy::Setup;
use harness::relay::Relay;
use harness::{Proxy, TEST_TIMEOUT, Upstream, eventually};

const RELOADED: &str = "the configuration was reloaded";
const KEPT: &str = "the running configuration stays";

/// A server that asks all roles but `postgres` for a SCRAM password, for the tests of this file.
async fn cluster() -> &'static (Cluster, TempDir) {
    static CLUSTER: OnceCell<(Cluster, TempDir)> = OnceCell::const_new();
    CLUSTER
        .get_or_init(|| async {
            let folder = tempfile::tempdir().unwrap();
            let hba = folder.path().join("hba.conf");
            std::fs::write(&hba, "host all postgres all trust\nhost all all all scram-sha-256\n").unwrap();
            for path in [folder.path(), &hba] {
                if let Some((uid, gid)) = owner() {
                    std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
                }
            }
            // PostgreSQL 13 makes another hash of a password unless it is told.
            let options = format!("-c hba_file={} -c password_encryption=scram-sha-256", hba.display());
            (tokio::task::spawn_blocking(move || Cluster::start(&options)).await.unwrap(), folder)
        })
        .await
}

/// A database with a role of its own, whose password is in a file; and a proxy on it.
struct World {
    database: TestDatabase,
    role: String,
    folder: TempDir,
    upstream: Upstream,
    setup: Setup,
    proxy: Proxy,
}

impl World {
    /// With the store at this address instead of the server's own.
    async fn start(address: Option<&str>) -> Self {
        let database = cluster().await.0.empty_database().await;
        let folder = tempfile::tempdir().unwrap();
        let role = format!("role_{}", database.name);
        let create = format!("create role {role} superuser login password 'first'");
        database.client().await.batch_execute(&create).await.unwrap();
        std::fs::write(folder.path().join("password"), "first\n").unwrap();
        let upstream = Upstream::start().await;
        let url = url(&folder, &role, address.unwrap_or(database.address()), &database.name);
        let setup = Proxy::on(&url).upstream(upstream.address);
        let proxy = setup.start().await;
        Self { database, role, folder, upstream, setup, proxy }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("password")
    }

    fn url(&self, role: &str, address: &str, database: &str) -> String {
        url(&self.folder, role, address, database)
    }

    async fn set_password(&self, password: &str) {
        let alter = format!("alter role {} password '{password}'", self.role);
        self.database.client().await.batch_execute(&alter).await.unwrap();
    }

    async fn end_sessions(&self) {
        let terminate =
            format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{}'", self.role);
        self.database.client().await.batch_execute(&terminate).await.unwrap();
    }

    fn pay(&self, key: &str) -> Request {
        self.proxy.post("/pay").key(key).body("x")
    }

    async fn expect(&self, key: &str, status: &str) {
        let response = self.pay(key).send().await;
        assert_eq!(response.oncegate_status(), Some(status), "{key}: {}\n{}", response.text(), self.proxy.output());
    }

    /// Replaces the URL, and asks for a reload.
    fn reload_with(&self, url: &str) {
        std::fs::write(self.proxy.file(), self.setup.clone().through(url).text()).unwrap();
        self.proxy.signal(Signal::HUP);
    }
}

fn url(folder: &TempDir, role: &str, address: &str, database: &str) -> String {
    let file = folder.path().join("password");
    format!("postgres://{role}:${{file:{}}}@{address}/{database}", file.display())
}

#[tokio::test]
async fn a_rotated_password_is_read_again_and_no_request_fails() {
    let world = World::start(None).await;
    world.expect("k-1", "executed").await;
    // A configuration that cannot be reloaded must not matter.
    std::fs::write(world.proxy.file(), "listen = 1").unwrap();
    world.proxy.wait_for_log("the running one stays").await;
    for round in 0..3 {
        // As tokens of managed databases are, with characters that separate the parts of a URL.
        let password = format!("db:5432/?Action=next{round}&a=b%2F@#");
        world.set_password(&password).await;
        std::fs::write(world.file(), format!("{password}\n")).unwrap();
        world.end_sessions().await;
        world.expect(&format!("k-{round}-new"), "executed").await;
        world.expect("k-1", "replayed").await;
    }
    assert_eq!(world.upstream.calls(), 4);
    assert!(!world.proxy.output().contains("next"), "no password is logged");
}

#[tokio::test]
async fn a_password_that_does_not_work_yet_keeps_the_earlier_one_and_is_tried_again() {
    let world = World::start(None).await;
    world.expect("k-1", "executed").await;
    std::fs::write(world.file(), "hunter2\n").unwrap();
    let said = world.proxy.wait_for_log("a file of store.url has changed, and the earlier connections stay").await;
    assert!(said["why"].as_str().unwrap().contains("password authentication failed"), "{said}");
    world.proxy.wait_for_log(RELOADED).await;
    world.expect("k-2", "executed").await;
    world.end_sessions().await;
    world.expect("k-3", "executed").await;
    std::fs::write(world.file(), "hunter2\n").unwrap();
    world.set_password("hunter2").await;
    world.end_sessions().await;
    eventually(TEST_TIMEOUT, async || {
        (world.pay("k-5").send().await.oncegate_status() == Some("executed")).then_some(())
    })
    .await;
    world.expect("k-1", "replayed").await;
    let output = world.proxy.output();
    assert!(!output.contains("hunter2") && !output.contains(&world.role), "{output}");
}

#[tokio::test]
async fn a_reload_leads_to_another_address_and_another_user_of_the_same_store() {
    let target = cluster().await.0.port();
    let relay = Relay::to(([127, 0, 0, 1], target).into()).await;
    let world = World::start(Some(&relay.address.to_string())).await;
    world.expect("k-1", "executed").await;
    // A process that can no longer reach the address that it started with.
    relay.cut();
    let client = world.database.client().await;
    let create = format!("create role {0}_b superuser login password 'first'", world.role);
    client.batch_execute(&create).await.unwrap();
    world.reload_with(&world.url(&format!("{}_b", world.role), world.database.address(), &world.database.name));
    world.proxy.wait_for_log(RELOADED).await;
    world.expect("k-1", "replayed").await;
    world.expect("k-2", "executed").await;
    let sql = format!("select count(*) from pg_stat_activity where usename = '{}_b'", world.role);
    assert!(crate::store_postgres::number(&client, &sql).await > 0);
    // With working connections too, whose statements go to the new place from then on.
    let other = Relay::to(([127, 0, 0, 1], target).into()).await;
    world.reload_with(&world.url(&world.role, &other.address.to_string(), &world.database.name));
    world.proxy.wait_for_logs(RELOADED, 2).await;
    world.expect("k-2", "replayed").await;
    world.expect("k-3", "executed").await;
    let earlier = async || {
        world.pay("k-3").send().await;
        (crate::store_postgres::number(&client, &sql).await == 0).then_some(())
    };
    eventually(TEST_TIMEOUT, earlier).await;
    assert!(!world.proxy.output().contains(&world.role), "no user is logged");
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_reload_with_another_store_or_one_that_does_not_work_is_refused() {
    let world = World::start(None).await;
    world.expect("k-1", "executed").await;
    let cluster = &cluster().await.0;
    let empty = cluster.empty_database().await;
    // A copy has the salt, the keys and the times of the original.
    let copy = format!("{}_copy", world.database.name);
    world.end_sessions().await;
    let sql = format!("create database {copy} template {}", world.database.name);
    let client = empty.client().await;
    eventually(TEST_TIMEOUT, async || {
        world.end_sessions().await;
        client.batch_execute(&sql).await.ok()
    })
    .await;
    let shared = postgres::database().await;
    let own = world.database.address();
    let unused = Upstream::unused_address().await.to_string();
    let other = "it leads to another store";
    let mut refusals = 0;
    for (url, why) in [
        (world.url(&world.role, own, &empty.name), other),
        (world.url(&world.role, own, &copy), other),
        (shared.url.clone(), other),
        (world.url(&world.role, own, "missing"), "does not exist"),
        (world.url("nobody", own, &world.database.name), "password authentication failed"),
        (world.url(&world.role, &unused, &world.database.name), "error connecting to server"),
    ] {
        world.reload_with(&url);
        refusals += 1;
        world.proxy.wait_for_logs(KEPT, refusals).await;
        let logged = world.proxy.logged();
        let said = logged.iter().rev().find(|line| line["message"].as_str().is_some_and(|text| text.contains(KEPT)));
        assert!(said.unwrap()["why"].as_str().unwrap().contains(why), "{url}: {said:?}");
        world.expect("k-1", "replayed").await;
    }
    world.expect("k-2", "executed").await;
    world.reload_with(&world.url(&world.role, own, &world.database.name));
    world.proxy.wait_for_log(RELOADED).await;
    world.expect("k-2", "replayed").await;
}

#[tokio::test]
async fn a_reload_leads_to_the_promoted_standby_and_the_lease_is_renewed_first() {
    let primary = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let primary = std::sync::Arc::new(primary);
    let database = primary.empty_database().await;
    let upstream = Upstream::start().await;
    let setup = Proxy::on(&database.url).upstream(upstream.address).short_leases();
    let proxy = setup.start().await;
    assert_eq!(proxy.post("/pay").key("k-1").body("x").send().await.oncegate_status(), Some("executed"));
    let copied = std::sync::Arc::clone(&primary);
    let standby = tokio::task::spawn_blocking(move || copied.standby()).await.unwrap();
    let standby = std::sync::Arc::new(standby);
    primary.crash();
    let promoted = std::sync::Arc::clone(&standby);
    tokio::task::spawn_blocking(move || promoted.promote()).await.unwrap();
    std::fs::write(proxy.file(), setup.clone().through(&standby.same(&database).url).text()).unwrap();
    proxy.signal(Signal::HUP);
    proxy.wait_for_log(RELOADED).await;
    let pay = async || {
        (proxy.post("/pay").key("k-2").body("x").send().await.oncegate_status() == Some("executed")).then_some(())
    };
    eventually(TEST_TIMEOUT, pay).await;
    assert_eq!(proxy.post("/pay").key("k-1").body("x").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(upstream.calls(), 2);
}
