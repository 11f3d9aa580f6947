//! The compared programs: Oncegate, HAProxy, nginx and Caddy, each configured for speed, and the peers, as they come.

use std::net::SocketAddr;
use std::path::Path;

use crate::process::{Process, find};

/// The environment variable with the path of an earlier program.
pub const EARLIER: &str = "ONCEGATE_BENCH_EARLIER";

/// Returns the path of Oncegate's binary: the release that `make` has built, otherwise cargo's own, which contains the parts
/// of the runtime that tests need.
pub fn this_program() -> String {
    let release = std::env::var("ONCEGATE_BENCH_BINARY").ok();
    release.unwrap_or_else(|| env!("CARGO_BIN_EXE_oncegate").to_owned())
}

/// Starts Oncegate with this store and this service, and defaults for everything else.
pub fn start_oncegate(upstream: SocketAddr, store: impl Fn(&Path) -> String) -> Process {
    Process::start(1, |home, addresses| oncegate_command(&this_program(), upstream, &store(home), addresses[0]))
}

/// Starts Oncegate from a copy of its file: it then shares no memory with the instances that already run.
pub fn start_copied_oncegate(upstream: SocketAddr, store: &str) -> Process {
    Process::start(1, |home, addresses| {
        let program = home.join("oncegate");
        std::fs::copy(this_program(), &program).unwrap();
        oncegate_command(&program.to_string_lossy(), upstream, store, addresses[0])
    })
}

fn oncegate_command(program: &str, upstream: SocketAddr, store: &str, listen: SocketAddr) -> Vec<String> {
    let (upstream, listen) = (format!("http://{upstream}"), listen.to_string());
    let flags = ["--upstream", &upstream, "--store", store, "--listen", &listen];
    [program, "run", "--admin", "127.0.0.1:0"].into_iter().chain(flags).map(str::to_owned).collect()
}

/// Starts a program of Oncegate with this store and no cache of its own, so that replays come from the store.
pub fn start_uncached_oncegate(program: &str, upstream: SocketAddr, store: &str) -> Process {
    Process::start(1, |home, addresses| {
        let listen = addresses[0];
        let configuration = format!(
            "listen = \"{listen}\"
upstream = \"http://{upstream}\"
cache = {{ memory = \"0B\" }}
[store]
url = \"{store}\"
[[routes]]
name = \"guarded\"
path = \"/{{*rest}}\"
methods = [\"POST\"]
"
        );
        let file = write_file(home, "oncegate.toml", &configuration);
        [program, "run", "--admin", "127.0.0.1:0", "--config", &file].map(str::to_owned).to_vec()
    })
}

/// Starts Oncegate so that every POST is accepted and delivered later, which needs a configuration file. The second address
/// is the admin listener's.
pub fn start_async_oncegate(upstream: SocketAddr, store: impl Fn(&Path) -> String) -> Process {
    Process::start(2, |home, addresses| {
        let configuration = format!(
            "listen = \"{listen}\"
upstream = \"http://{upstream}\"
secret = \"the secret of a benchmark\"
[admin]
listen = \"{admin}\"
open = true
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
        let file = write_file(home, "oncegate.toml", &configuration);
        [&this_program(), "run", "--config", &file].map(str::to_owned).to_vec()
    })
}

/// Starts HAProxy with a thread for each core, kept and shared connections to the service, and no logs.
pub fn start_haproxy(upstream: SocketAddr) -> Option<Process> {
    start_haproxy_with(upstream, 2000)
}

fn start_haproxy_with(upstream: SocketAddr, connections_max: usize) -> Option<Process> {
    let program = find("haproxy")?.to_str()?.to_owned();
    Some(Process::start(1, |home, addresses| {
        let configuration = format!(
            "global
  nbthread {cores}
  maxconn {connections_max}
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
        let file = write_file(home, "haproxy.cfg", &configuration);
        vec![program.clone(), "-db".to_owned(), "-f".to_owned(), file]
    }))
}

/// Starts nginx with a worker for each core and kept connections to the service. The first address passes requests through.
/// The second answers from the cache, by caller, path and key, with cached open files. The third answers from the same cache
/// with defaults, where nginx opens a file for each answer.
pub fn start_nginx(upstream: SocketAddr) -> Option<Process> {
    let program = find("nginx")?.to_str()?.to_owned();
    Some(Process::start(3, |home, addresses| {
        let folder = home.display();
        // As root, nginx would run its workers as a user that may not read our folder.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"]
            .map(|module| format!("  {module}_temp_path {folder}/{module};\n"))
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
pid {folder}/pid;
events {{ worker_connections 2000; }}
http {{
  access_log off;
{temporary}
  keepalive_requests 1000000000;
  proxy_http_version 1.1;
  proxy_set_header Connection \"\";
  proxy_set_header Host $host;
  proxy_cache_path {folder}/cache keys_zone=bench:10m;
  upstream service {{
    server {upstream};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {pass_through} reuseport;
    location / {{ proxy_pass http://service; }}
  }}
  server {{
    listen {cache} reuseport;
    open_file_cache max=10000 inactive=10m;
    {cached}
  }}
  server {{
    listen {default_cache} reuseport;
    {cached}
  }}
}}
",
            cores = cores(),
            pass_through = addresses[0],
            cache = addresses[1],
            default_cache = addresses[2]
        );
        let file = write_file(home, "nginx.conf", &configuration);
        let arguments = [&program, "-e", "stderr", "-p", &home.to_string_lossy(), "-c", &file];
        arguments.map(str::to_owned).to_vec()
    }))
}

/// Starts Caddy with kept connections to the service for all clients. It logs no requests as it comes.
pub fn start_caddy(program: &Path, upstream: SocketAddr) -> Result<Process, String> {
    Process::try_start(1, |home, addresses| {
        let configuration = format!(
            "{{
  admin off
  auto_https off
  storage file_system {folder}
}}
http://:{port} {{
  bind 127.0.0.1
  reverse_proxy {upstream} {{
    transport http {{
      keepalive_idle_conns_per_host 512
    }}
  }}
}}
",
            folder = home.display(),
            port = addresses[0].port()
        );
        let file = write_file(home, "Caddyfile", &configuration);
        let home = format!("HOME={}", home.display());
        let command = ["env", &home, &program.to_string_lossy(), "run", "--adapter", "caddyfile", "--config", &file];
        command.map(str::to_owned).to_vec()
    })
}

/// Starts Oncegate for a thousand streams at once: each has a connection to the service.
pub fn start_streaming_oncegate(upstream: SocketAddr, store: &str) -> Process {
    Process::start(1, |home, addresses| {
        let listen = addresses[0];
        let configuration = format!(
            "listen = \"{listen}\"
upstream = \"http://{upstream}\"
limits = {{ upstream_connections = 2000 }}
[store]
url = \"{store}\"
"
        );
        let file = write_file(home, "oncegate.toml", &configuration);
        [&this_program(), "run", "--admin", "127.0.0.1:0", "--config", &file].map(str::to_owned).to_vec()
    })
}

/// Starts HAProxy for a thousand streams: it passes each piece on as it comes.
pub fn start_streaming_haproxy(upstream: SocketAddr) -> Option<Process> {
    start_haproxy_with(upstream, 4000)
}

/// Starts nginx for a thousand streams: with `proxy_buffering off` it passes each piece on as it comes.
pub fn start_streaming_nginx(upstream: SocketAddr) -> Option<Process> {
    let program = find("nginx")?.to_str()?.to_owned();
    Some(Process::start(1, |home, addresses| {
        let folder = home.display();
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"]
            .map(|module| format!("  {module}_temp_path {folder}/{module};\n"))
            .concat();
        let configuration = format!(
            "{user}
daemon off;
worker_processes {cores};
pid {folder}/pid;
events {{ worker_connections 4000; }}
http {{
  access_log off;
{temporary}
  proxy_http_version 1.1;
  proxy_buffering off;
  server {{
    listen {listen};
    location / {{ proxy_pass http://{upstream}; }}
  }}
}}
",
            cores = cores(),
            listen = addresses[0],
        );
        let file = write_file(home, "nginx.conf", &configuration);
        let arguments = [&program, "-e", "stderr", "-p", &home.to_string_lossy(), "-c", &file];
        arguments.map(str::to_owned).to_vec()
    }))
}

/// Starts a Redis that syncs every write before it answers.
pub fn start_redis() -> Result<Process, String> {
    let program = find("redis-server").or_else(|| find("valkey-server")).ok_or("Redis is not installed")?;
    Process::try_start(1, |home, addresses| {
        let (port, folder) = (addresses[0].port().to_string(), home.to_string_lossy());
        let listen = ["--bind", "127.0.0.1", "--port", &port, "--dir", &folder];
        let durability = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
        let arguments = listen.into_iter().chain(durability).map(str::to_owned);
        [program.display().to_string()].into_iter().chain(arguments).collect()
    })
}

/// Starts a program in Node.js. It gets its port and then the other arguments, and logs no requests.
pub fn start_node(script: &Path, arguments: &[&str]) -> Result<Process, String> {
    let node = find("node").ok_or("Node.js is not installed")?;
    Process::try_start(1, |_, addresses| {
        let command = ["env", "NODE_ENV=production", "RESTATE_LOGGING=WARN"].map(str::to_owned);
        let program = [node.display().to_string(), script.display().to_string(), addresses[0].port().to_string()];
        command.into_iter().chain(program).chain(arguments.iter().map(|&argument| argument.to_owned())).collect()
    })
}

/// Starts a Restate server of one node. The first address is the ingress, the second the admin API, the third its own port for
/// other nodes.
pub fn start_restate(program: &Path) -> Result<Process, String> {
    Process::try_start(3, |home, addresses| {
        let configuration = format!(
            "node-name = \"bench\"
base-dir = \"{folder}/data\"
listen-mode = \"tcp\"
bind-ip = \"127.0.0.1\"
bind-port = {port}
log-filter = \"warn\"
disable-telemetry = true
[ingress]
bind-address = \"{ingress}\"
[admin]
bind-address = \"{admin}\"
",
            folder = home.display(),
            port = addresses[2].port(),
            ingress = addresses[0],
            admin = addresses[1]
        );
        let file = write_file(home, "restate.toml", &configuration);
        [&program.to_string_lossy(), "--no-logo", "--config-file", &file].map(str::to_owned).to_vec()
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn write_file(home: &Path, name: &str, text: &str) -> String {
    let file = home.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}
