//! The compared programs: Oncegate, HAProxy, nginx and Caddy, each configured for speed, and services in Node.js.

use std::net::SocketAddr;
use std::path::Path;

use crate::process::{Process, find};

/// Returns the path of Oncegate's binary: the release that `make` has built, otherwise cargo's own, which contains the
/// parts of the runtime that tests need.
pub fn this_program() -> String {
    let release = std::env::var("ONCEGATE_BENCH_BINARY").ok();
    release.unwrap_or_else(|| env!("CARGO_BIN_EXE_oncegate").to_owned())
}

/// Starts Oncegate with this store and this service, and defaults for everything else.
pub fn start_oncegate(upstream: SocketAddr, store: &str) -> Result<Process, String> {
    Process::start(|_, address| {
        let (program, upstream, listen) = (this_program(), format!("http://{upstream}"), address.to_string());
        let flags = ["--upstream", &upstream, "--store", store, "--listen", &listen, "--admin", "127.0.0.1:0"];
        [&*program, "run"].into_iter().chain(flags).map(str::to_owned).collect()
    })
}

/// Routes beside the one for the load.
pub fn other_routes(count: usize) -> String {
    let route = |number| {
        format!("[[routes]]\nname = \"route-{number}\"\npath = \"/v1/other-{number}/{{id}}\"\nmethods = [\"POST\"]\n")
    };
    (1..count).map(route).collect()
}

/// The same of a fleet: services with three routes each. The last one has the host of the load.
pub fn services(count: usize, upstream: SocketAddr) -> String {
    let service = |number| {
        let host = if number == count { "bench".to_owned() } else { format!("s{number}.example") };
        let routes = ["orders", "orders/{id}", "refunds"].map(|path| {
            let name = path.replace(['/', '{', '}'], "-");
            format!("[[routes]]\nname = \"s{number}-{name}\"\nservice = \"s{number}\"\npath = \"/v2/{path}\"\n")
        });
        format!(
            "[[services]]\nname = \"s{number}\"\nhost = \"{host}\"\nupstream = \"http://{upstream}\"\n{}",
            routes.concat()
        )
    };
    (1..=count).map(service).collect()
}

/// Starts a program of Oncegate with this store and no cache of its own, so that replays come from the store. The route
/// for the load comes behind `others`, with the lines of `of_route`.
pub fn start_uncached_oncegate(
    program: &str,
    upstream: SocketAddr,
    store: &str,
    (others, of_route): (&str, &str),
) -> Result<Process, String> {
    Process::start(|home, listen| {
        let configuration = format!(
            "listen = \"{listen}\"
upstream = \"http://{upstream}\"
cache = {{ memory = \"0B\" }}
limits = {{ connections = 12000, connections_per_peer = 12000 }}
[store]
url = \"{store}\"
{others}
[[routes]]
name = \"guarded\"
path = \"/{{*rest}}\"
methods = [\"POST\"]
{of_route}
"
        );
        let file = write_file(home, "oncegate.toml", &configuration);
        [program, "run", "--admin", "127.0.0.1:0", "--config", &file].map(str::to_owned).to_vec()
    })
}

/// Starts HAProxy with a thread for each core, kept and shared connections to the service, and no logs.
pub fn start_haproxy(upstream: SocketAddr) -> Result<Process, String> {
    let program = find("haproxy").ok_or("haproxy is not installed")?;
    Process::start(|home, listen| {
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
        );
        let file = write_file(home, "haproxy.cfg", &configuration);
        [&program.to_string_lossy(), "-db", "-f", &file].map(str::to_owned).to_vec()
    })
}

/// Starts nginx with a worker for each core and kept connections to the service.
pub fn start_nginx(upstream: SocketAddr) -> Result<Process, String> {
    start_nginx_with(upstream, "")
}

/// Starts nginx that answers a known key from its cache, whose files it keeps open.
pub fn start_nginx_cache(upstream: SocketAddr) -> Result<Process, String> {
    let cache = "proxy_cache bench;
    proxy_cache_methods POST;
    proxy_cache_key $http_idempotency_key;
    proxy_cache_valid 201 10m;
    add_header idempotent-replayed $replayed;
    open_file_cache max=10000 inactive=10m;";
    start_nginx_with(upstream, cache)
}

fn start_nginx_with(upstream: SocketAddr, cache: &str) -> Result<Process, String> {
    let program = find("nginx").ok_or("nginx is not installed")?;
    Process::start(|home, listen| {
        let folder = home.display();
        // As root, nginx would run its workers as a user that may not read our folder.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"]
            .map(|module| format!("  {module}_temp_path {folder}/{module};\n"))
            .concat();
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
  map $upstream_cache_status $replayed {{ HIT true; }}
  upstream service {{
    server {upstream};
    keepalive 512;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {listen} reuseport;
    {cache}
    location / {{ proxy_pass http://service; }}
  }}
}}
",
            cores = cores(),
        );
        let file = write_file(home, "nginx.conf", &configuration);
        let arguments = [&program.to_string_lossy(), "-e", "stderr", "-p", &home.to_string_lossy(), "-c", &file];
        arguments.map(str::to_owned).to_vec()
    })
}

/// Starts Caddy with kept connections to the service for all clients. It logs no requests as it comes.
pub fn start_caddy(program: &Path, upstream: SocketAddr) -> Result<Process, String> {
    Process::start(|home, address| {
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
            port = address.port()
        );
        let file = write_file(home, "Caddyfile", &configuration);
        let home = format!("HOME={}", home.display());
        let command = ["env", &home, &program.to_string_lossy(), "run", "--adapter", "caddyfile", "--config", &file];
        command.map(str::to_owned).to_vec()
    })
}

/// Starts a program in Node.js. It gets its port and then the other arguments, and logs no requests.
pub fn start_node(script: &Path, arguments: &[&str]) -> Result<Process, String> {
    let node = find("node").ok_or("Node.js is not installed")?;
    Process::start(|_, address| {
        let (node, script, port) = (node.to_string_lossy(), script.to_string_lossy(), address.port().to_string());
        let command = ["env", "NODE_ENV=production", &node, &script, &port];
        command.into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect()
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
