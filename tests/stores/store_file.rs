//! The embedded store's files are removed, replaced or truncated while a proxy serves: it acknowledges nothing that the
//! next one cannot read, ends as after a failed disk, and leaves what can be saved.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::task::JoinSet;

use harness::{Answer, Hold, Proxy, Request, Setup, Upstream};

/// The state of the key that was completed before the change, at the next start.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Its answer is replayed.
    Replayed,
    /// It is executed again: another file has been put in the place of the one that has it.
    Forgotten,
    /// The next start is refused.
    Refused,
    /// The next start is refused; after this repair its answer is replayed.
    Repaired(fn(&Path)),
}

fn database(folder: &Path) -> PathBuf {
    folder.join("oncegate.db")
}

fn log(folder: &Path) -> PathBuf {
    folder.join("oncegate.db-wal")
}

fn beside(folder: &Path) -> PathBuf {
    folder.parent().unwrap().join("beside")
}

/// A change, by its name, and the next start.
type NamedChange = (&'static str, fn(&Path), Next);

/// Each way in which somebody may change the files, and the next start's view. The backup `oncegate.backup` is from
/// before the process's start.
const CHANGES: &[NamedChange] = &[
    ("rm of the database", |folder| fs::remove_file(database(folder)).unwrap(), Next::Refused),
    ("rm of the log", |folder| fs::remove_file(log(folder)).unwrap(), Next::Replayed),
    (
        "rm of both",
        |folder| [database(folder), log(folder)].iter().for_each(|file| fs::remove_file(file).unwrap()),
        Next::Forgotten,
    ),
    (
        "mv of a copy over the database",
        |folder| {
            fs::copy(database(folder), folder.join("copy")).unwrap();
            fs::rename(folder.join("copy"), database(folder)).unwrap();
        },
        Next::Forgotten,
    ),
    (
        "mv of a copy over the log",
        |folder| {
            fs::copy(log(folder), folder.join("copy")).unwrap();
            fs::rename(folder.join("copy"), log(folder)).unwrap();
        },
        Next::Replayed,
    ),
    (
        "mv of the database to elsewhere",
        |folder| fs::rename(database(folder), folder.join("elsewhere")).unwrap(),
        Next::Repaired(|folder| fs::rename(folder.join("elsewhere"), database(folder)).unwrap()),
    ),
    (
        "mv of the folder",
        |folder| fs::rename(folder, beside(folder)).unwrap(),
        Next::Repaired(|folder| fs::rename(beside(folder), folder).unwrap()),
    ),
    ("rm of the folder", |folder| fs::remove_dir_all(folder).unwrap(), Next::Refused),
    (
        "a file in the folder's place",
        |folder| {
            fs::rename(folder, beside(folder)).unwrap();
            fs::write(folder, "").unwrap();
        },
        Next::Refused,
    ),
    ("truncation of the database to nothing", |folder| truncate(&database(folder), 0), Next::Refused),
    ("truncation of the database to a page", |folder| truncate(&database(folder), 4096), Next::Refused),
    ("truncation of the log", |folder| truncate(&log(folder), 0), Next::Forgotten),
    (
        "mv of a backup over the database",
        |folder| fs::rename(folder.join("oncegate.backup"), database(folder)).unwrap(),
        Next::Forgotten,
    ),
    (
        "cp of a backup into the database",
        |folder| {
            fs::copy(folder.join("oncegate.backup"), database(folder)).unwrap();
        },
        Next::Forgotten,
    ),
    (
        "a hard link, and rm of the database",
        |folder| {
            fs::hard_link(database(folder), folder.join("link")).unwrap();
            fs::remove_file(database(folder)).unwrap();
        },
        Next::Repaired(|folder| fs::rename(folder.join("link"), database(folder)).unwrap()),
    ),
    (
        "a symbolic link to a copy in the database's place",
        |folder| {
            fs::copy(database(folder), folder.join("copy")).unwrap();
            fs::remove_file(database(folder)).unwrap();
            symlink(folder.join("copy"), database(folder)).unwrap();
        },
        Next::Forgotten,
    ),
];

fn truncate(file: &Path, length: u64) {
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}

/// A service, and a proxy's setup on a store in a folder of its own, with a backup beside it.
struct Place {
    home: TempDir,
    upstream: Upstream,
    setup: Setup,
}

impl Place {
    async fn new(heartbeat: &str) -> Self {
        let (home, upstream) = (tempfile::tempdir().unwrap(), Upstream::start().await);
        fs::create_dir(home.path().join("store")).unwrap();
        let url = format!("sqlite:{}", database(&home.path().join("store")).display());
        let lease = format!("lease = {{ heartbeat = \"{heartbeat}\", expiry = \"20s\" }}\nsweep_every = \"60s\"");
        let setup = Proxy::on(&url).upstream(upstream.address).store(&lease);
        let place = Self { home, upstream, setup };
        let first = place.setup.start().await;
        assert_eq!(pay(&first, "early").send().await.status, 201);
        assert_eq!(first.stop().await, Some(0));
        assert!(!log(&place.folder()).exists(), "a close leaves no log");
        fs::copy(database(&place.folder()), place.folder().join("oncegate.backup")).unwrap();
        place
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("store")
    }

    async fn has_next(&self, change: &str, next: Next) {
        if matches!(next, Next::Refused | Next::Repaired(_)) {
            let ended = self.setup.fails().await;
            assert_eq!(ended.code, 69, "{change}: {}", ended.stderr);
        }
        if let Next::Repaired(repair) = next {
            repair(&self.folder());
        }
        if matches!(next, Next::Refused) {
            return;
        }
        let (proxy, before) = (self.setup.start().await, self.upstream.calls());
        let retry = pay(&proxy, "k").send().await;
        let executed_again = self.upstream.calls() > before;
        assert_eq!((retry.status, executed_again), (201, matches!(next, Next::Forgotten)), "{change}");
        assert_eq!(proxy.stop().await, Some(0), "{change}");
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

/// Runs the work for each change, all at once.
async fn for_each_change<Work: Future<Output = ()> + Send + 'static>(
    work: impl Fn(&'static str, fn(&Path), Next) -> Work,
) {
    let mut all: JoinSet<()> = CHANGES.iter().map(|(name, change, next)| work(name, *change, *next)).collect();
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_request_after_a_change_of_the_files_is_refused_and_the_process_ends() {
    for_each_change(|name, change, next| async move {
        let place = Place::new("10s").await;
        let proxy = place.setup.start().await;
        assert_eq!(pay(&proxy, "k").send().await.oncegate_status(), Some("executed"), "{name}");
        change(&place.folder());
        // Refused by the store, or by the end of the process, where a task has used the store first.
        let late = pay(&proxy, "late").send().await;
        assert_eq!((late.status, place.upstream.executed_for("late")), (503, 0), "{name}");
        let line = proxy.wait_for_log("the store's file failed").await;
        assert_eq!((&line["level"], proxy.ended().await), (&"ERROR".into(), Some(74)), "{name}");
        place.has_next(name, next).await;
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_after_a_change_of_the_files_ends_an_idle_process() {
    for_each_change(|name, change, next| async move {
        let place = Place::new("200ms").await;
        let proxy = place.setup.start().await;
        assert_eq!(pay(&proxy, "k").send().await.oncegate_status(), Some("executed"), "{name}");
        change(&place.folder());
        assert_eq!(proxy.ended().await, Some(74), "{name}");
        place.has_next(name, next).await;
    })
    .await;
}

#[tokio::test]
async fn an_outcome_after_a_change_of_the_files_is_answered_as_unstored() {
    let place = Place::new("10s").await;
    let hold = Hold::new();
    place.upstream.then(Answer::status(201).hold(&hold));
    let proxy = place.setup.start().await;
    let running = pay(&proxy, "k").spawn();
    place.upstream.wait_for_executed(2).await;
    fs::remove_file(database(&place.folder())).unwrap();
    hold.release();
    let answer = running.await.unwrap().unwrap();
    assert_eq!((answer.status, answer.oncegate_status()), (201, Some("unstored")));
    assert_eq!(proxy.ended().await, Some(74));
}

/// The file that the store's path is a link to, in another folder.
fn target(folder: &Path) -> PathBuf {
    folder.parent().unwrap().join("volume").join("real.db")
}

/// A way to lay links from the store's path to [`target`], by its name.
type NamedLink = (&'static str, fn(&Path));

const LINKS: &[NamedLink] = &[
    ("an absolute link", |folder| symlink(target(folder), database(folder)).unwrap()),
    ("a relative link", |folder| symlink("../volume/real.db", database(folder)).unwrap()),
    ("a link to a link", |folder| {
        symlink("../volume/real.db", folder.join("step")).unwrap();
        symlink("step", database(folder)).unwrap();
    }),
    ("a link through a linked folder", |folder| {
        symlink("../volume", folder.join("linked")).unwrap();
        symlink("linked/real.db", database(folder)).unwrap();
    }),
];

#[tokio::test]
async fn a_link_to_a_missing_file_whose_log_is_there_is_refused() {
    for (name, link) in LINKS {
        let place = Place::new("10s").await;
        let folder = place.folder();
        fs::create_dir(target(&folder).parent().unwrap()).unwrap();
        fs::rename(database(&folder), target(&folder)).unwrap();
        link(&folder);
        let proxy = place.setup.start().await;
        assert_eq!(pay(&proxy, "k").send().await.oncegate_status(), Some("executed"), "{name}");
        fs::rename(target(&folder), target(&folder).with_file_name("elsewhere")).unwrap();
        assert_eq!(pay(&proxy, "late").send().await.status, 503, "{name}");
        assert_eq!(proxy.ended().await, Some(74), "{name}");
        let ended = place.setup.fails().await;
        assert!(ended.code == 69 && ended.stderr.contains("real.db-wal"), "{name}: {}", ended.stderr);
        assert!(!target(&folder).exists(), "{name}: an empty file was made");
        let back = |folder: &Path| fs::rename(target(folder).with_file_name("elsewhere"), target(folder)).unwrap();
        place.has_next(name, Next::Repaired(back)).await;
    }
}

#[tokio::test]
async fn what_changes_no_contents_of_the_files_ends_nothing() {
    let place = Place::new("200ms").await;
    place.upstream.answer_all(Answer::status(201).padded(50_000));
    let proxy = place.setup.start().await;
    let folder = place.folder();
    let harmless: &[(&str, &dyn Fn())] = &[
        ("cp of the files", &|| {
            fs::copy(database(&folder), folder.join("copy")).unwrap();
            fs::copy(log(&folder), folder.join("copy-wal")).unwrap();
        }),
        (".backup, which the lock refuses", &|| {
            let other = rusqlite::Connection::open(database(&folder)).unwrap();
            other.query_row("select count(*) from sqlite_schema", [], |_| Ok(())).unwrap_err();
        }),
        ("chmod", &|| {
            for mode in [0o400, 0o000, 0o600] {
                fs::set_permissions(database(&folder), fs::Permissions::from_mode(mode)).unwrap();
            }
        }),
        ("a hard link", &|| fs::hard_link(database(&folder), folder.join("link")).unwrap()),
        ("touch", &|| {
            for file in [database(&folder), log(&folder)] {
                fs::OpenOptions::new().write(true).open(file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
            }
        }),
    ];
    let length = || fs::metadata(database(&folder)).unwrap().len();
    let mut keys = 0..;
    for (name, change) in harmless {
        change();
        // Until SQLite has written the log into the file.
        let before = length();
        while length() == before {
            let key = format!("k-{}", keys.next().unwrap());
            assert_eq!(pay(&proxy, &key).send().await.oncegate_status(), Some("executed"), "{name} {key}");
        }
    }
    assert_eq!(proxy.stop().await, Some(0));
    assert!(!proxy.output().contains("file failed"));
    assert!(!log(&folder).exists());
}
