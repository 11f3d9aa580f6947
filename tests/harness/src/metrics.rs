//! The metrics of a running proxy.

use std::collections::BTreeMap;
use std::fs;

use super::client::Client;
use super::{Proxy, Response, TEST_TIMEOUT, eventually};

/// Scrapes the metrics as Prometheus does, with this Accept field.
pub async fn scrape(proxy: &Proxy, accept: &str) -> Response {
    Client { address: proxy.admin }.get("/metrics").host("prometheus").field("Accept", accept).send().await
}

/// Each series with its value, read without a token. The label `service`, which each has, is left out.
pub struct Metrics(pub BTreeMap<String, f64>);

impl Metrics {
    pub async fn of(proxy: &Proxy) -> Self {
        let response = scrape(proxy, "*/*").await;
        assert_eq!(
            (response.status, response.field("content-type")),
            (200, Some("text/plain; version=0.0.4; charset=utf-8"))
        );
        let text = response.text();
        let series = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once("{service=\"").unwrap_or_else(|| panic!("whose is {line}?"));
            let series = match labels.split_once("\",") {
                Some((_, others)) => format!("{name}{{{others}"),
                None => name.to_owned(),
            };
            (series, value.parse().unwrap())
        });
        Self(series.collect())
    }

    /// The value of an existing series.
    pub fn get(&self, series: &str) -> f64 {
        self.find(series).unwrap_or_else(|| panic!("there is no {series}: {:#?}", self.0.keys()))
    }

    /// The value of a series that may not exist.
    pub fn find(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// The number of calls of the store that have ended well.
    pub fn store_calls(&self, op: &str) -> f64 {
        let count = |series: &str| self.get(&format!("oncegate_store_{series}{{op=\"{op}\"}}"));
        count("duration_seconds_count") - count("errors_total")
    }

    /// The sum of all series with this prefix.
    pub fn sum(&self, prefix: &str) -> f64 {
        self.0.iter().filter(|(series, _)| series.starts_with(prefix)).map(|(_, value)| value).sum()
    }
}

/// Waits until this many more calls of the store have ended well. Each pass of a background task is such a call. The
/// first one may have begun before this, and what the test has done is seen by the second one.
pub async fn more_store_calls(proxy: &Proxy, op: &str, count: u32) {
    let enough = Metrics::of(proxy).await.store_calls(op) + f64::from(count);
    eventually(TEST_TIMEOUT, async || (Metrics::of(proxy).await.store_calls(op) >= enough).then_some(())).await;
}

/// The greatest memory of a proxy so far, in bytes.
pub fn peak_memory(proxy: &Proxy) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", proxy.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
