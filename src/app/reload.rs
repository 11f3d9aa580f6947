//! Takes a changed configuration over, or keeps the running one and says why.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Consumer, Problems, Route, Tls, Version};
use crate::gate::meters::Meters;
use crate::gate::watch::Watch;

/// Between two looks at the file. Mounted configurations change by a link being swapped, which no notification follows;
/// reading some kilobytes is nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Where the configuration comes from.
pub struct Source {
    /// The file to look at, if there is one.
    file: Option<PathBuf>,
    /// What stood in it before it was read for the first time: a change from then on is seen.
    seen: Option<Vec<u8>>,
    /// Reads and checks it again, with the same flags.
    load: Box<dyn Fn() -> Result<Config, Problems> + Send + Sync>,
}

impl Source {
    /// To be made before the configuration is loaded.
    pub fn new(file: Option<PathBuf>, load: impl Fn() -> Result<Config, Problems> + Send + Sync + 'static) -> Self {
        let seen = read(file.as_ref());
        Self { file, seen, load: Box::new(load) }
    }
}

fn read(file: Option<&PathBuf>) -> Option<Vec<u8>> {
    std::fs::read(file?).ok()
}

/// From here on a SIGHUP is a wish, and no longer the process's end.
///
/// # Errors
/// The system refuses a handler.
pub fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reloads on SIGHUP and when the file, or the certificate or its key, has changed, until `stop`. Each new configuration is sent to `taken`.
pub async fn watch(
    mut source: Source,
    mut hangup: Signal,
    taken: watch::Sender<Arc<Config>>,
    meters: Arc<Watch>,
    stop: CancellationToken,
) {
    let meters = &meters.meters;
    now_runs(meters);
    let mut certificate = version(&taken);
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return,
            _ = hangup.recv() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let now = read(source.file.as_ref());
        let certificate_now = taken.borrow().tls.as_ref().and_then(Tls::version_now);
        // A file that is gone is being replaced, or was taken away: neither is a wish to change anything.
        let changed = now.is_some() && now != source.seen;
        let renewed = certificate_now.is_some() && certificate_now != certificate;
        if asked || changed || renewed {
            source.seen = now;
            // What was read counts, rather than what was there a moment before.
            certificate = match take(&source, &taken) {
                true => {
                    now_runs(meters);
                    version(&taken)
                }
                false => {
                    meters.reload_successful.set(0);
                    meters.reload_failures.inc();
                    certificate_now
                }
            };
        }
    }
}

/// The newest configuration is the running one.
fn now_runs(meters: &Meters) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    meters.reloaded_at.set(now.as_secs().cast_signed());
    meters.reload_successful.set(1);
}

fn version(taken: &watch::Sender<Arc<Config>>) -> Option<Version> {
    taken.borrow().tls.as_ref().map(Tls::version)
}

/// Whether the new configuration is now the running one.
fn take(source: &Source, taken: &watch::Sender<Arc<Config>>) -> bool {
    let new = match (source.load)() {
        Ok(new) => new,
        Err(problems) => {
            for problem in problems.iter() {
                tracing::error!(%problem, "the configuration has a problem; the running one stays");
            }
            return false;
        }
    };
    let running = Arc::clone(&taken.borrow());
    if let Some((route, what)) = refused(&running, &new) {
        tracing::error!(
            %route,
            "{what} has changed, which would make this route's keys unfindable; the running configuration stays. \
             Restart to change it"
        );
        return false;
    }
    if let Some((queue, what)) = changed_consumer(&running, &new) {
        tracing::error!(
            %queue,
            "{what} has changed, which would make the keys of this queue's messages unfindable; the running \
             configuration stays. Restart to change it"
        );
        return false;
    }
    for what in until_restart(&running, &new) {
        tracing::warn!("{what} has changed, which takes effect with a restart");
    }
    for warning in &new.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(routes = new.routes.len(), "the configuration was reloaded");
    taken.send_replace(Arc::new(new));
    true
}

/// What must not change while keys are held by it: a retry would be another request.
fn refused(running: &Config, new: &Config) -> Option<(Arc<str>, &'static str)> {
    new.routes.iter().find_map(|route| {
        let before = running.routes.iter().find(|before| before.name == route.name || guards_alike(before, route))?;
        changed_identity(before, route).map(|what| (Arc::clone(&route.name), what))
    })
}

/// A route that was renamed is still the same one to the keys that it holds.
fn guards_alike(one: &Route, other: &Route) -> bool {
    one.host == other.host && one.path.is_same_as(&other.path) && one.methods == other.methods
}

/// Which part of what finds a key differs between two versions of a route.
fn changed_identity(one: &Route, other: &Route) -> Option<&'static str> {
    if one.scope != other.scope {
        Some("scope")
    } else if one.space != other.space {
        Some("space")
    } else if one.key.sources != other.key.sources {
        Some("the key's place")
    } else if one.key.syntax != other.key.syntax {
        Some("the key's syntax")
    } else {
        None
    }
}

/// The same for messages: which part of what finds their keys differs for a queue that stays.
fn changed_consumer(running: &Config, new: &Config) -> Option<(Box<str>, &'static str)> {
    let changed = |one: &Consumer, other: &Consumer| {
        if one.scope != other.scope {
            Some("scope")
        } else if one.key != other.key {
            Some("the key's place")
        } else if one.route != other.route {
            Some("route")
        } else if one.path != other.path {
            Some("path")
        } else {
            None
        }
    };
    new.consumers.iter().find_map(|consumer| {
        let before = running.consumers.iter().find(|before| before.is_of_same_queue(consumer))?;
        changed(before, consumer).map(|what| (consumer.queue.clone(), what))
    })
}

/// What is fixed when the process starts.
fn until_restart(running: &Config, new: &Config) -> Vec<&'static str> {
    let fixed = [
        ("listen", running.listen != new.listen),
        ("service", running.service != new.service),
        ("drain_delay", running.drain_delay != new.drain_delay),
        ("drain_timeout", running.drain_timeout != new.drain_timeout),
        ("admin", running.admin != new.admin),
        ("store", running.store != new.store),
        ("telemetry", (&running.log, &running.otlp) != (&new.log, &new.otlp)),
    ];
    fixed.into_iter().filter(|(_, changed)| *changed).map(|(what, _)| what).collect()
}
