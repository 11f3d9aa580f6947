//! The proxy of the demo: the program, in a process of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use data_encoding::HEXLOWER;
use http::Request;
use tokio::time::{sleep, timeout};

use super::{DemoError, STEP_MAX, send};
use oncegate_machine::fill_random;

/// The time for the proxy to start, cold and on a slow machine.
const START_MAX: Duration = Duration::from_secs(20);

pub(super) struct DemoListeners {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) log: &'static str,
    /// Whether Ctrl-C is for this process alone, which then ends the proxy: by two signals the proxy would end at once.
    pub(super) has_own_group: bool,
}

/// The proxy, a process of its own with a folder that is removed at its end.
pub(super) struct DemoProxy {
    process: Child,
    pub(super) address: SocketAddr,
    pub(super) folder: PathBuf,
}

impl DemoProxy {
    /// Starts it, and waits until it is ready.
    pub(super) async fn start(
        program: &Path,
        upstream: SocketAddr,
        listeners: &DemoListeners,
    ) -> Result<Self, DemoError> {
        let DemoListeners { listen, admin, log, has_own_group } = listeners;
        let folder = std::env::temp_dir().join(format!("oncegate-demo-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let (file, store) = (folder.join("oncegate.toml"), folder.join("oncegate.db"));
        // As in production: without a secret, the first line of the log would be about that.
        let mut secret = [0; 32];
        fill_random(&mut secret)?;
        let config = format!(
            "upstream = \"http://{upstream}\"\nlisten = \"{listen}\"\nsecret = \"${{ONCEGATE_SECRET}}\"\n\n\
             [store]\nurl = \"sqlite:{}\"\nencrypt = true\n\n\
             # Without a token: only on a machine of one's own, and only for a demo.\n\
             [admin]\nlisten = \"{admin}\"\nopen = true\n",
            store.display()
        );
        std::fs::write(&file, config)?;
        let mut command = Command::new(program);
        if *has_own_group {
            command.process_group(0);
        }
        // Those of the image, such as ONCEGATE_LISTEN, would overrule the file.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ONCEGATE_")) {
            command.env_remove(name);
        }
        let process = command
            .arg("run")
            .arg("--config")
            .arg(&file)
            .env("ONCEGATE_LOG", log)
            .env("ONCEGATE_SECRET", HEXLOWER.encode(&secret))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut proxy = Self { process, address: *listen, folder };
        timeout(START_MAX, proxy.wait_until_ready(*admin)).await??;
        Ok(proxy)
    }

    pub(super) async fn wait_for_end(&mut self) -> Result<(), DemoError> {
        while self.process.try_wait()?.is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn wait_until_ready(&mut self, admin: SocketAddr) -> Result<(), DemoError> {
        loop {
            let response = send(admin, Request::get("/readyz"), "").await;
            if response.is_ok_and(|response| response.status().is_success()) {
                return Ok(());
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("the proxy has ended: {status}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it with SIGTERM, and waits until it has drained.
    pub(super) async fn stop(mut self) -> Result<(), DemoError> {
        let id = rustix::process::Pid::from_child(&self.process);
        if self.process.try_wait()?.is_none() {
            rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        }
        timeout(STEP_MAX, self.wait_for_end()).await?
    }
}

impl Drop for DemoProxy {
    fn drop(&mut self) {
        // After `stop` it is gone; after an error it must not be left running.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An address of this machine's own with this port, or with a free one where another program has it.
pub(super) fn find_free_address(port: u16) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    listener.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}
