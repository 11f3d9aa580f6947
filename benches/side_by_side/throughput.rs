//! Requests per second: pass-through, first attempts, replays; PostgreSQL's processor time; memory.

use std::net::SocketAddr;

use crate::load;
use crate::pgbench::Pair;
use crate::request::Load;
use crate::sheet::Target::{AtLeast, AtMost};
use crate::sheet::{Column, Sheet, Target};
use crate::stage::Stage;

const CONNECTIONS: [usize; 2] = [64, 256];

pub const ALONE: &str = "the service alone";
pub const PASS: &str = "pass-through";
pub const FIRST: &str = "first attempts, PostgreSQL";
pub const PAIR: &str = "pgbench's pair";

const PASS_HAPROXY: &str = "pass-through, HAProxy";
const PASS_NGINX: &str = "pass-through, nginx";
const FIRST_SQLITE: &str = "first attempts, SQLite";
const REPLAYS: &str = "replays, PostgreSQL";
const REPLAYS_SQLITE: &str = "replays, SQLite";
const CACHE_HITS: &str = "cache hits, nginx";
const CACHE_HITS_AS_IT_COMES: &str = "cache hits, nginx as it comes";

/// How a row is measured.
enum How<'s> {
    Requests(SocketAddr, Load),
    /// The same, with PostgreSQL's part.
    FirstAttempts(SocketAddr),
    Pairs(&'s Pair),
}

pub fn run(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let (shared, embedded) = (stage.shared.addresses[0], stage.embedded.addresses[0]);
    load::seed(shared)?;
    load::seed(embedded)?;
    let mut subjects = vec![
        (ALONE, How::Requests(stage.upstream, Load::PassThrough)),
        (PASS, How::Requests(shared, Load::PassThrough)),
    ];
    if let Some(haproxy) = &stage.haproxy {
        subjects.push((PASS_HAPROXY, How::Requests(haproxy.addresses[0], Load::PassThrough)));
    }
    if let Some(nginx) = &stage.nginx {
        subjects.push((PASS_NGINX, How::Requests(nginx.addresses[0], Load::PassThrough)));
    }
    subjects.push((FIRST, How::FirstAttempts(shared)));
    if let Some(pair) = &stage.pair {
        subjects.push((PAIR, How::Pairs(pair)));
    }
    subjects.push((FIRST_SQLITE, How::Requests(embedded, Load::First)));
    subjects.push((REPLAYS, How::Requests(shared, Load::Replay)));
    subjects.push((REPLAYS_SQLITE, How::Requests(embedded, Load::Replay)));
    if let Some(nginx) = &stage.nginx {
        load::seed(nginx.addresses[1])?;
        subjects.push((CACHE_HITS, How::Requests(nginx.addresses[1], Load::CacheHit)));
        // The same files: what one has stored the other answers from.
        subjects.push((CACHE_HITS_AS_IT_COMES, How::Requests(nginx.addresses[2], Load::CacheHit)));
    }
    // Row by row in the table, but round by round in time.
    for round in 0..stage.options.rounds() {
        eprintln!("throughput: round {} of {}", round + 1, stage.options.rounds());
        for connections in CONNECTIONS {
            for (name, how) in &subjects {
                measure(stage, sheet, name, how, connections)?;
            }
        }
    }
    for connections in CONNECTIONS {
        sheet.compare((PASS, PASS_HAPROXY), connections, Column::Rate, AtLeast(1.0));
        sheet.compare((PASS, PASS_NGINX), connections, Column::Rate, Target::None);
    }
    sheet.compare((FIRST, PAIR), 64, Column::Rate, AtLeast(2.0));
    sheet.compare((FIRST, PAIR), 256, Column::Rate, AtLeast(3.0));
    for connections in CONNECTIONS {
        sheet.compare((FIRST, PAIR), connections, Column::Server, AtMost(0.2));
    }
    for connections in CONNECTIONS {
        sheet.compare((REPLAYS, CACHE_HITS), connections, Column::Rate, AtLeast(1.3));
        sheet.compare((REPLAYS, CACHE_HITS_AS_IT_COMES), connections, Column::Rate, Target::None);
    }
    Ok(())
}

/// One load for a while, and whom to look at meanwhile.
pub fn hold(stage: &Stage, load: Load) -> Result<(), String> {
    load::seed(stage.shared.addresses[0])?;
    println!("Oncegate is process {}, its database {}", stage.shared.pid, stage.database.url);
    let round = load::closed(&stage.shared.addresses, load, 64, stage.options.length())?;
    println!("{:.0} requests/s", round.rate);
    Ok(())
}

fn measure(stage: &Stage, sheet: &mut Sheet, name: &str, how: &How<'_>, connections: usize) -> Result<(), String> {
    let length = stage.options.length();
    match how {
        How::Requests(target, load) => {
            let round = load::closed(&[*target], *load, connections, length)?;
            sheet.add_round(name, connections, &round);
        }
        How::FirstAttempts(target) => {
            stage.first_attempts(&[*target], connections, sheet, name)?;
        }
        How::Pairs(pair) => {
            let (took, connecting) = stage.metered(|| pair.connect(connections))?;
            let ((rate, pairs), server) = stage.metered(|| pair.rate(connections, length, took))?;
            let more = pairs.checked_sub(connections as u64).filter(|more| *more > 0);
            let each = (server - connecting).max(0.0) / more.ok_or("pgbench had no time for its pairs")? as f64;
            sheet.add(name, connections, &[(Column::Rate, rate), (Column::Server, each)]);
        }
    }
    Ok(())
}

/// What the programs took of memory before and after all that was measured so far.
pub fn memory(stage: &Stage, sheet: &mut Sheet) {
    let mebi = |bytes: u64| vec![bytes as f64 / f64::from(1 << 20)];
    let all = stage.idle.iter().zip(stage.memory()).map(|((name, idle), (_, after))| (*name, *idle, after));
    for (name, idle, after) in all.collect::<Vec<_>>() {
        sheet.add_memory(name, idle, after);
        if name.starts_with("Oncegate") {
            sheet.judge(format!("{name}: MiB idle"), mebi(idle), AtMost(15.0));
            sheet.judge(format!("{name}: MiB after load"), mebi(after), AtMost(100.0));
        }
    }
}
