//! The peers from npm and PyPI: the installation of their packages, and the check that they execute each key once.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::output;
use crate::process::find;
use crate::request::{BODY, SERVICE_PATH};

/// Installs the packages of a peer from npm below the target folder, as its lock file lists them. Returns the folder,
/// which also has the peer's own programs. No package's install script runs but that of better-sqlite3, which compiles
/// SQLite.
pub fn install(name: &str) -> Result<PathBuf, String> {
    let npm = find("npm").ok_or("npm is not installed")?;
    let last = "node_modules/better-sqlite3/build/Release/better_sqlite3.node";
    let peer = Peer::copy(name, "package-lock.json", last)?;
    if !peer.is_installed {
        peer.run(&npm, &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])?;
        peer.run(&npm, &["rebuild", "--ignore-scripts=false", "--loglevel=error", "better-sqlite3"])?;
    }
    Ok(peer.folder)
}

/// Installs a program of a peer from PyPI below the target folder, in the version that its requirements name. Returns
/// its path.
pub fn install_program(name: &str) -> Result<PathBuf, String> {
    let python = find("python3").ok_or("Python is not installed")?;
    let program = format!("venv/bin/{name}");
    let peer = Peer::copy(name, "requirements.txt", &program)?;
    if !peer.is_installed {
        peer.run(&python, &["-m", "venv", "--clear", "venv"])?;
        let options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "-r", "requirements.txt"];
        peer.run(&peer.folder.join("venv/bin/pip"), &[&["install"][..], &options].concat())?;
    }
    Ok(peer.folder.join(program))
}

/// A peer's folder below the target folder.
struct Peer {
    folder: PathBuf,
    is_installed: bool,
}

impl Peer {
    /// Copies the peer's own files. It is installed if the list of its packages is the one that was there, and `result`
    /// is there.
    fn copy(name: &str, list: &str, result: &str) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers").join(name);
        let folder = output::folder().join("peers").join(name);
        let list_of = |folder: &Path| fs::read(folder.join(list)).ok();
        let is_installed = list_of(&folder) == list_of(&source) && folder.join(result).exists();
        copy_files(&source, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder, is_installed })
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<(), String> {
        eprintln!("{}: {} {}", self.folder.display(), program.display(), arguments.join(" "));
        let output = Command::new(program).args(arguments).current_dir(&self.folder).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        // The first lines name the cause; a stack follows.
        let reason = || String::from_utf8_lossy(&output.stderr).lines().take(4).collect::<Vec<_>>().join(" ");
        if output.status.success() { Ok(()) } else { Err(format!("{}: {}", program.display(), reason())) }
    }
}

fn copy_files(source: &Path, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}

/// Fails unless duplicates of a key get the first one's answer. Each execution's answer contains its number, so equal
/// answers are of one execution.
pub fn check_deduplication(address: SocketAddr) -> Result<(), String> {
    let send = |key| post(address, key).map_err(|error| format!("{address}: {error}"));
    let (first, duplicate, other) = (send("check-1")?, send("check-1")?, send("check-2")?);
    if first == duplicate && first != other {
        Ok(())
    } else {
        Err(format!("{address} does not execute each key once: {first:?}, {duplicate:?}, {other:?}"))
    }
}

/// Sends one request under a key. Returns the body of the answer, which must be a success.
fn post(address: SocketAddr, key: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "POST {SERVICE_PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 20") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("not the right answer: {answer:?}"))),
    }
}
