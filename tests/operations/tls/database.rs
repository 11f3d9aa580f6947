//! PostgreSQL over TLS: each `sslmode` against servers with valid and invalid certificates.

use std::error::Error;
use std::os::unix::fs::{PermissionsExt, chown};

use oncegate_store as store;
use oncegate_telemetry::logs::error_causes;
use tempfile::TempDir;
use tokio_postgres::NoTls;

use harness::postgres::{Cluster, owner, settings};
use harness::store_fixture::{new_reserve_request, unwrap_lease};
use harness::tls::{Authority, CertifiedKeyFiles};
use harness::{Proxy, TEST_TIMEOUT, Upstream, eventually, postgres};

/// A server with TLS whose certificate is for `localhost` alone.
struct Secure {
    cluster: Cluster,
    authority: Authority,
    /// The authority of the client certificates that it accepts.
    callers: Authority,
    folder: TempDir,
}

const HBA: &str = "\
hostssl all with_certificate all cert
hostssl all with_password all scram-sha-256
host all with_certificate,with_password all reject
host all all all trust
";

impl Secure {
    async fn start() -> Self {
        let (authority, callers) = (Authority::new(), Authority::new());
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = authority.issue(&["localhost"]).write(folder.path());
        let (hba, ca) = (folder.path().join("hba.conf"), folder.path().join("callers.pem"));
        std::fs::write(&hba, HBA).unwrap();
        std::fs::write(&ca, callers.pem()).unwrap();
        for path in [folder.path(), &certificate, &key, &hba, &ca] {
            if let Some((uid, gid)) = owner() {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let options = format!(
            "-c ssl=on -c ssl_cert_file={} -c ssl_key_file={} -c ssl_ca_file={} -c hba_file={}",
            certificate.display(),
            key.display(),
            ca.display(),
            hba.display()
        );
        let cluster = tokio::task::spawn_blocking(move || Cluster::start(&options)).await.unwrap();
        Self { cluster, authority, callers, folder }
    }

    /// A URL to a migrated database by this host's name, with these parameters.
    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{user}@{host}:{}/postgres?{parameters}", self.cluster.port())
    }

    fn root(&self) -> String {
        format!("sslrootcert={}", self.authority.file().display())
    }
}

/// Whether the store's own connection has TLS; otherwise the logged error.
async fn opened(url: &str) -> Result<bool, String> {
    let store = match store::open(&settings(url)).await {
        Ok(store) => store,
        Err(error) => return Err(full_message(&error)),
    };
    store.ping().await.map_err(|error| full_message(&error))?;
    Ok(has_tls(url).await)
}

fn full_message(error: &(dyn Error + 'static)) -> String {
    let message = format!("{error}: {}", error_causes(error).unwrap_or_default());
    assert!(!message.contains("hunter2"), "{message}");
    message
}

/// Whether the server reports TLS for the store's connections.
async fn has_tls(url: &str) -> bool {
    let port = url.split(['@', '/', '?']).nth(3).unwrap().rsplit(':').next().unwrap();
    let (client, connection) =
        tokio_postgres::connect(&format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable"), NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    let sql = "select count(*), count(*) filter (where ssl) from pg_stat_activity join pg_stat_ssl using (pid)
               where application_name = 'oncegate'";
    let row = client.query_one(sql, &[]).await.unwrap();
    let (all, with_tls): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > 0 && (with_tls == 0 || with_tls == all), "{with_tls} of {all}");
    with_tls > 0
}

#[tokio::test]
async fn each_sslmode_verifies_as_documented() {
    let secure = Secure::start().await;
    let stranger = Authority::new();
    let (root, other) = (secure.root(), format!("sslrootcert={}", stranger.file().display()));
    let (untrusted, misnamed) = ("no trusted authority", "not valid for name \"127.0.0.1\"");
    let cases: &[(&str, &str, &str, Result<bool, &str>)] = &[
        ("localhost", "sslmode=disable", "", Ok(false)),
        ("localhost", "", "", Ok(true)),
        ("localhost", "sslmode=prefer", "", Ok(true)),
        ("127.0.0.1", "sslmode=require", "", Ok(true)),
        ("127.0.0.1", "sslmode=require", &root, Ok(true)),
        ("127.0.0.1", "sslmode=require", &other, Err(untrusted)),
        ("127.0.0.1", "sslmode=verify-ca", &root, Ok(true)),
        ("localhost", "sslmode=verify-ca", &other, Err(untrusted)),
        ("localhost", "sslmode=verify-full", &root, Ok(true)),
        ("localhost", "sslmode=verify-full", &other, Err(untrusted)),
        ("127.0.0.1", "sslmode=verify-full", &root, Err(misnamed)),
        ("localhost", "", &root, Ok(true)),
        ("127.0.0.1", "", &root, Err(misnamed)),
        (
            "localhost",
            "sslmode=verify-full",
            "sslrootcert=/nowhere.pem",
            Err("has an `sslrootcert` whose file cannot be read"),
        ),
    ];
    for (host, mode, more, expected) in cases {
        let url = secure.url("postgres:hunter2", host, &[*mode, *more].map(|word| word.to_owned()).join("&"));
        match (opened(&url).await, expected) {
            (Ok(has), Ok(should)) => assert_eq!(has, *should, "{url}"),
            (Err(output), Err(words)) => assert!(output.contains(words), "{url}: {output}"),
            (got, _) => panic!("{url}: {got:?}"),
        }
    }
}

#[tokio::test]
async fn statements_are_prepared_over_tls_too() {
    let secure = Secure::start().await;
    let database = secure.cluster.empty_database().await;
    let url = format!("{}?sslmode=require", database.url);
    let store = store::open(&settings(&url)).await.unwrap();
    database.note_prepared_statements().await;
    let lease = unwrap_lease(store.reserve(new_reserve_request("k-1")).await.unwrap());
    assert_eq!((lease.attempt, database.noted_prepared_statements().await), (1, vec![1]));
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_required() {
    let database = postgres::database().await;
    let root = Authority::new();
    let url = |mode: &str| format!("{}?{mode}", database.url.replace("127.0.0.1", "localhost"));
    for mode in ["", "sslmode=disable", "sslmode=prefer"] {
        assert_eq!(opened(&url(mode)).await, Ok(false), "{mode}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = opened(&url(&format!("sslmode={mode}&sslrootcert={}", root.file().display()))).await.unwrap_err();
        assert!(error.contains("server does not support TLS"), "{mode}: {error}");
    }
    // A name not known as this machine's, although it resolves to it.
    let elsewhere = database.url.replace("127.0.0.1", "127.1");
    let error = opened(&format!("{elsewhere}?sslrootcert={}", root.file().display())).await.unwrap_err();
    assert!(error.contains("write `sslmode=disable` into store.url"), "{error}");
    assert_eq!(opened(&format!("{elsewhere}?sslmode=disable")).await, Ok(false));
}

#[tokio::test]
async fn client_certificates_and_channel_binding_passwords_authenticate() {
    let secure = Secure::start().await;
    let (client, connection) =
        tokio_postgres::connect(&secure.url("postgres", "127.0.0.1", "sslmode=disable"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let roles =
        "create role with_certificate superuser login; create role with_password superuser login password 'hunter2'";
    client.batch_execute(roles).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let show = |pair: CertifiedKeyFiles| {
        let (certificate, key) = pair.write(folder.path());
        format!("sslmode=verify-full&{}&sslcert={}&sslkey={}", secure.root(), certificate.display(), key.display())
    };
    let url = |parameters: &str| secure.url("with_certificate", "localhost", parameters);
    assert_eq!(opened(&url(&show(secure.callers.issue_to_client("with_certificate")))).await, Ok(true));
    let error = opened(&url(&show(secure.callers.issue_to_client("somebody")))).await.unwrap_err();
    assert!(error.contains("certificate authentication failed"), "{error}");
    let error = opened(&url(&format!("sslmode=verify-full&{}", secure.root()))).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    let bound = format!("sslmode=verify-full&{}&channel_binding=require", secure.root());
    assert_eq!(opened(&secure.url("with_password:hunter2", "localhost", &bound)).await, Ok(true));
    let direct_in_vain = secure.url("with_password:hunter2", "localhost", "sslmode=disable&channel_binding=require");
    assert!(opened(&direct_in_vain).await.is_err());
}

#[tokio::test]
async fn each_host_of_a_list_is_verified_by_its_own_name() {
    let secure = Secure::start().await;
    let port = secure.cluster.port();
    let url = |hosts: &str| format!("postgres://postgres@{hosts}/postgres?sslmode=verify-full&{}", secure.root());
    assert_eq!(opened(&url(&format!("localhost:{port},127.0.0.1:{port}"))).await, Ok(true));
    assert_eq!(opened(&url(&format!("127.0.0.1:{port},localhost:{port}"))).await, Ok(true));
    let error = opened(&url(&format!("127.0.0.1:{port},127.0.0.1:{port}"))).await.unwrap_err();
    assert!(error.contains("not valid for name \"127.0.0.1\""), "{error}");
}

#[tokio::test]
async fn changed_authorities_apply_from_the_next_connection() {
    let secure = Secure::start().await;
    let roots = secure.folder.path().join("roots.pem");
    std::fs::write(&roots, secure.authority.pem()).unwrap();
    let parameters = format!("sslmode=verify-full&sslrootcert={}", roots.display());
    let mut settings = settings(&secure.url("postgres", "localhost", &parameters));
    settings.timeout = std::time::Duration::from_secs(1);
    let store = store::open(&settings).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&secure.url("postgres", "127.0.0.1", "sslmode=disable"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let reconnected = async || {
        let terminate = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'oncegate'";
        client.batch_execute(terminate).await.unwrap();
        store.ping().await
    };
    std::fs::write(&roots, Authority::new().pem()).unwrap();
    let is_refused = async || reconnected().await.err().filter(|e| full_message(e).contains("no trusted authority"));
    eventually(TEST_TIMEOUT, is_refused).await;
    std::fs::write(&roots, secure.authority.pem()).unwrap();
    eventually(TEST_TIMEOUT, async || reconnected().await.ok()).await;
    // No valid file: the authorities of before stay.
    std::fs::write(&roots, "text").unwrap();
    reconnected().await.unwrap();
}

#[tokio::test]
async fn a_proxy_keeps_its_keys_over_tls() {
    let secure = Secure::start().await;
    let upstream = Upstream::start().await;
    let url = secure.url("postgres", "localhost", &format!("sslmode=verify-full&{}", secure.root()));
    let proxy = Proxy::on(&url).upstream(upstream.address).start().await;
    for oncegate_status in ["executed", "replayed"] {
        assert_eq!(proxy.post("/pay").key("k-1").body("x").send().await.oncegate_status(), Some(oncegate_status));
    }
    assert!(has_tls(&url).await);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn an_sslmode_open_to_downgrade_is_a_configuration_error() {
    let setup =
        Proxy::on("postgres://oncegate:hunter2@db.example/d?sslmode=prefer").top("upstream = \"http://127.0.0.1:1\"");
    let ended = setup.fails().await;
    assert_eq!(ended.code, 78, "{}", ended.stderr);
    assert!(ended.stderr.contains("store.url: has `sslmode=prefer`"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("write `sslmode=verify-full`") && !ended.stderr.contains("hunter2"),
        "{}",
        ended.stderr
    );
}
