//! The peers from npm: the installation of their packages, and the check that they execute each key once.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::find;
use crate::request::BODY;
use crate::{http_client, output};

/// Installs the packages of a peer below the target folder, as its lock file lists them. Returns the folder, which also has
/// the peer's own programs. No package's install script runs.
pub fn install(name: &str) -> Result<PathBuf, String> {
    let npm = find("npm").ok_or("npm is not installed")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers").join(name);
    let folder = output::folder().join("peers").join(name);
    let lock_of = |folder: &Path| fs::read(folder.join("package-lock.json")).ok();
    // npm writes this file when it has installed everything.
    let is_installed = lock_of(&folder) == lock_of(&source) && folder.join("node_modules/.package-lock.json").exists();
    copy_files(&source, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if !is_installed {
        eprintln!("{name}: installing its packages");
        let command = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
        let output = Command::new(npm).args(command).current_dir(&folder).output();
        let output = output.map_err(|error| format!("npm: {error}"))?;
        if !output.status.success() {
            // npm's first lines name the cause; a stack follows.
            let reason = String::from_utf8_lossy(&output.stderr).lines().take(4).collect::<Vec<_>>().join(" ");
            return Err(format!("npm ci: {}: {reason}", output.status));
        }
    }
    Ok(folder)
}

fn copy_files(source: &Path, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}

/// Fails unless duplicates of a key get the first one's answer. Each execution's answer contains its number, so equal answers
/// are of one execution.
pub fn check_deduplication(address: SocketAddr, path: &str) -> Result<(), String> {
    let send = |key| http_client::request(address, "POST", path, &[("Idempotency-Key", key)], BODY);
    let (first, duplicate, other) = (send("check-1")?, send("check-1")?, send("check-2")?);
    if first == duplicate && first != other {
        Ok(())
    } else {
        Err(format!("{address}{path} does not execute each key once: {first:?}, {duplicate:?}, {other:?}"))
    }
}
