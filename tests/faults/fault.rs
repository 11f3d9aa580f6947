//! What can be broken, and how.

use std::time::Duration;

use rustix::process::Signal;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};
use tokio_postgres::NoTls;

use crate::dice::Dice;
use crate::harness::Store;
use crate::harness::relay::Relay;
use crate::site::Site;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `kill -9` of a proxy; the next one is started at once.
    Kill,
    /// A proxy stands still until its lease has run out, and goes on.
    Pause,
    /// PostgreSQL is ended as by a power cut, and started again.
    CrashStore,
    /// All of PostgreSQL stands still for longer than the proxies wait for it, and goes on.
    FreezeStore,
    /// PostgreSQL ends the proxies' sessions, and others have all its connections.
    CrowdStore,
    /// The wire between a proxy and PostgreSQL is cut.
    CutStore,
    /// That wire carries nothing, and nobody is told. What was on its way comes late, or never.
    MuteStore,
    /// The wire between a proxy and the service is cut.
    CutService,
    /// That wire carries nothing, and nobody is told.
    MuteService,
}

impl Fault {
    /// Breaks it, and mends it.
    pub async fn strike(self, site: &Site, dice: &mut Dice) {
        let number = dice.below(site.seats.len());
        let seat = &site.seats[number];
        match self {
            Self::Kill => site.kill(number).await,
            Self::Pause => {
                let proxy = seat.proxy.lock().await;
                proxy.signal(Signal::STOP);
                sleep(dice.millis(1_400, 2_100)).await;
                proxy.signal(Signal::CONT);
            }
            Self::CrashStore => {
                let cluster = site.cluster.as_ref().unwrap().lock().await;
                block_in_place(|| cluster.crash());
                sleep(dice.millis(0, 700)).await;
                block_in_place(|| cluster.restart());
            }
            Self::FreezeStore => {
                let cluster = site.cluster.as_ref().unwrap().lock().await;
                block_in_place(|| cluster.freeze());
                sleep(dice.millis(600, 1_600)).await;
                block_in_place(|| cluster.thaw());
            }
            Self::CrowdStore => {
                let _cluster = site.cluster.as_ref().unwrap().lock().await;
                crowd(&site.store, dice.millis(600, 1_200)).await;
            }
            Self::CutStore => cut(&*seat.to_store.as_ref().unwrap().lock().await, dice).await,
            Self::MuteStore => mute(&*seat.to_store.as_ref().unwrap().lock().await, dice).await,
            Self::CutService => cut(&*seat.to_service.lock().await, dice).await,
            Self::MuteService => mute(&*seat.to_service.lock().await, dice).await,
        }
    }
}

async fn cut(wire: &Relay, dice: &mut Dice) {
    wire.cut();
    sleep(dice.millis(20, 1_200)).await;
    wire.mend();
}

async fn mute(wire: &Relay, dice: &mut Dice) {
    wire.silence();
    sleep(dice.millis(600, 1_500)).await;
    if dice.chance(500) {
        // What was on its way is lost with its connection.
        wire.cut();
        sleep(Duration::from_millis(20)).await;
    }
    wire.mend();
}

/// Takes every connection that there is, and keeps taking those that the proxies had.
async fn crowd(store: &Store, lasts: Duration) {
    let Store::Postgres(database) = store else { panic!("only a server can be crowded") };
    let until = Instant::now() + lasts;
    // One that is already in can show the others out.
    let us = database.client().await;
    let mut others = JoinSet::new();
    for _ in 0..6 {
        let url = database.url.clone();
        others.spawn(async move {
            let mut taken = Vec::new();
            while Instant::now() < until {
                match tokio_postgres::connect(&url, NoTls).await {
                    Ok((client, connection)) => {
                        tokio::spawn(connection);
                        taken.push(client);
                    }
                    Err(_) => sleep(Duration::from_millis(2)).await,
                }
            }
        });
    }
    while Instant::now() < until {
        let out = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'oncegate'";
        us.batch_execute(out).await.unwrap();
        sleep(Duration::from_millis(25)).await;
    }
    while let Some(ended) = others.join_next().await {
        ended.unwrap();
    }
}
