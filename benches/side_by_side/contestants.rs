//! Who is compared: Oncegate, HAProxy and nginx, each as somebody who wants it fast would set it up.

use std::net::SocketAddr;
use std::path::Path;

use crate::process::{Process, find};

/// Oncegate as it is shipped, where `make` has built it so. The one that cargo builds beside has in it what tests need of
/// the runtime.
fn program() -> String {
    let told = std::env::var("ONCEGATE_BENCH_BINARY").ok();
    told.unwrap_or_else(|| env!("CARGO_BIN_EXE_oncegate").to_owned())
}

/// Oncegate with this store before this service; all else as it comes.
pub fn oncegate(upstream: SocketAddr, store: impl Fn(&Path) -> String) -> Process {
    Process::start(1, |home, addresses| {
        let (upstream, store) = (format!("http://{upstream}"), store(home));
        let flags = ["--upstream", &upstream, "--store", &store, "--listen", &addresses[0].to_string()];
        let program = [&program(), "run", "--admin", "127.0.0.1:0"];
        program.into_iter().chain(flags).map(str::to_owned).collect()
    })
}

/// The same where every POST is accepted and delivered later, which takes a file to say. Its second address is the
/// operators'.
pub fn delivering(upstream: SocketAddr, store: impl Fn(&Path) -> String) -> Process {
    Process::start(2, |home, addresses| {
        let configuration = format!(
            "listen = \"{listen}\"
upstream = \"http://{upstream}\"
secret = \"the secret of a benchmark\"
[admin]
listen = \"{admin}\"
[store]
url = \"{store}\"
[[routes]]
name = \"later\"
path = \"/{{*rest}}\"
methods = [\"POST\"]
delivery = \"async\"
",
            listen = addresses[0],
            admin = addresses[1],
            store = store(home)
        );
        let file = written(home, "oncegate.toml", &configuration);
        [&program(), "run", "--config", &file].map(str::to_owned).to_vec()
    })
}

/// HAProxy with a thread for each core, connections to the service kept and shared, nothing logged.
pub fn haproxy(upstream: SocketAddr) -> Option<Process> {
    let program = find("haproxy")?.to_str()?.to_owned();
    Some(Process::start(1, |home, addresses| {
        let configuration = format!(
            "global
  nbthread {cores}
  maxconn 2000
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen bench
  bind {listen}
  server service {upstream}
",
            cores = cores(),
            listen = addresses[0]
        );
        let file = written(home, "haproxy.cfg", &configuration);
        vec![program.clone(), "-db".to_owned(), "-f".to_owned(), file]
    }))
}

/// nginx with a worker for each core and connections to the service kept. Its first address passes through; its second
/// answers from its cache, under the caller, the path and the key, files kept open; its third from the same cache as it
/// comes, where a file is opened for each answer.
pub fn nginx(upstream: SocketAddr) -> Option<Process> {
    let program = find("nginx")?.to_str()?.to_owned();
    Some(Process::start(3, |home, addresses| {
        let place = home.display();
        // Its workers would be somebody who must not look into our folder.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"]
            .map(|what| format!("  {what}_temp_path {place}/{what};\n"))
            .concat();
        let cached = "location / {
      proxy_pass http://service;
      proxy_cache bench;
      proxy_cache_methods POST;
      proxy_cache_key $http_authorization$uri$http_idempotency_key;
      proxy_cache_valid 201 24h;
      add_header X-Cache $upstream_cache_status always;
    }";
        let configuration = format!(
            "{user}
daemon off;
worker_processes {cores};
pid {place}/pid;
events {{ worker_connections 2000; }}
http {{
  access_log off;
{temporary}
  keepalive_requests 1000000000;
  proxy_http_version 1.1;
  proxy_set_header Connection \"\";
  proxy_set_header Host $host;
  proxy_cache_path {place}/cache keys_zone=bench:10m;
  upstream service {{
    server {upstream};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {passes} reuseport;
    location / {{ proxy_pass http://service; }}
  }}
  server {{
    listen {caches} reuseport;
    open_file_cache max=10000 inactive=10m;
    {cached}
  }}
  server {{
    listen {as_it_comes} reuseport;
    {cached}
  }}
}}
",
            cores = cores(),
            passes = addresses[0],
            caches = addresses[1],
            as_it_comes = addresses[2]
        );
        let file = written(home, "nginx.conf", &configuration);
        let arguments = [&program, "-e", "stderr", "-p", &home.to_string_lossy(), "-c", &file];
        arguments.map(str::to_owned).to_vec()
    }))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn written(home: &Path, name: &str, text: &str) -> String {
    let file = home.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}
