//! Sockets that a supervisor hands over: which listener takes which, and what fits none. One
//! test has systemd's own program.

use std::net::{SocketAddr, TcpListener, UdpSocket};

use rustix::net::{AddressFamily, SocketType, socket};

use harness::{Proxy, Setup, Store, TEST_TIMEOUT, Upstream, eventually, find_program, skip};

fn bind(address: &str) -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// A proxy's setup with these two addresses. Those of the file are port 0, which fits no socket.
fn listening(store: &Store, upstream: SocketAddr, clients: &str, operators: &str) -> Setup {
    let setup = Proxy::on(&store.url()).upstream(upstream);
    setup.environment("ONCEGATE_LISTEN", clients).environment("ONCEGATE_ADMIN_LISTEN", operators)
}

#[tokio::test]
async fn a_listener_takes_the_socket_of_its_address_and_then_of_its_name() {
    let (store, upstream) = (Store::sqlite(), Upstream::start().await);
    const ANY: &str = "127.0.0.1:0";
    // By the address, whatever the names are, and in any order. By the name. One by each.
    for case in 0..4 {
        let ((clients, client_socket), (operators, admin_socket)) = (bind("127.0.0.1"), bind("127.0.0.1"));
        let (by_clients, by_operators) = (clients.to_string(), operators.to_string());
        let setup = match case {
            0 => listening(&store, upstream.address, &by_clients, &by_operators)
                .handed("oncegate.socket", admin_socket)
                .handed("oncegate.socket", client_socket),
            1 => listening(&store, upstream.address, &by_clients, &by_operators)
                .handed("proxy", admin_socket)
                .handed("admin", client_socket),
            2 => listening(&store, upstream.address, ANY, ANY)
                .handed("admin", admin_socket)
                .handed("proxy", client_socket),
            _ => listening(&store, upstream.address, &by_clients, ANY)
                .handed("web", client_socket)
                .handed("admin", admin_socket),
        };
        let proxy = setup.start().await;
        assert_eq!((proxy.listen, proxy.admin), (clients, operators), "case {case}");
        let answer = proxy.post("/pay").key(&format!("case-{case}")).body("10 EUR").send().await;
        assert_eq!((answer.oncegate_status(), proxy.readyz().await.0), (Some("executed"), 200), "case {case}");
        assert_eq!(proxy.stop().await, Some(0));
    }
}

#[tokio::test]
async fn a_listener_without_a_socket_opens_its_own() {
    let (store, upstream, (clients, socket)) = (Store::sqlite(), Upstream::start().await, bind("127.0.0.1"));
    let setup = listening(&store, upstream.address, "127.0.0.1:0", "127.0.0.1:0").handed("proxy", socket);
    let proxy = setup.start().await;
    assert_eq!(proxy.listen, clients);
    assert_eq!(proxy.readyz().await.0, 200);
}

#[tokio::test]
async fn a_socket_that_fits_nothing_keeps_the_proxy_from_starting() {
    const CONFIG: i32 = 78;
    let (store, upstream) = (Store::sqlite(), Upstream::start().await);
    let setup = || listening(&store, upstream.address, "127.0.0.1:0", "127.0.0.1:0");
    let closed = || TcpListener::bind("127.0.0.1:0").unwrap();
    let unbound = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let (web, other) = bind("127.0.0.1");
    let cases = [
        (setup().handed("web", other), format!("no listener takes the socket of {web} named \"web\"")),
        // The first one is taken.
        (setup().handed("proxy", closed()).handed("proxy", closed()), "no listener takes the socket of".to_owned()),
        (
            setup().handed("proxy", UdpSocket::bind("127.0.0.1:0").unwrap()),
            "socket 1 of LISTEN_FDS, named \"proxy\"".to_owned(),
        ),
        (
            setup().handed("proxy", closed()).handed("admin", unbound()),
            "socket 2 of LISTEN_FDS, named \"admin\"".to_owned(),
        ),
        (
            setup().handed("admin", TcpListener::bind("0.0.0.0:0").unwrap()),
            "can be reached from other machines".to_owned(),
        ),
        (setup().handed("proxy", closed()).environment("LISTEN_FDS", "many"), "LISTEN_FDS is \"many\"".to_owned()),
        (setup().handed("proxy", closed()).environment("LISTEN_FDS", "3"), "socket 2 of LISTEN_FDS".to_owned()),
    ];
    for (setup, problem) in cases {
        let ended = setup.fails().await;
        assert_eq!(ended.code, CONFIG, "{problem}: {}", ended.stderr);
        assert!(ended.stderr.contains(&problem), "{problem}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn sockets_for_another_process_are_left_alone() {
    let (store, upstream) = (Store::sqlite(), Upstream::start().await);
    let setup = listening(&store, upstream.address, "127.0.0.1:0", "127.0.0.1:0");
    let setup = setup.environment("LISTEN_FDS", "2").environment("LISTEN_PID", "1");
    let proxy = setup.start().await;
    assert_eq!(proxy.readyz().await.0, 200);
}

/// systemd's program listens, waits for the first connection, and becomes the proxy.
#[tokio::test]
async fn systemd_activates_the_proxy_by_its_first_connection() {
    let Some(program) = find_program(&["systemd-socket-activate"]) else {
        return skip("systemd-socket-activate is not installed");
    };
    let (store, upstream, (address, socket)) = (Store::sqlite(), Upstream::start().await, bind("127.0.0.1"));
    drop(socket);
    let arguments = ["--listen", &address.to_string(), "--fdname", "proxy"].map(Into::into);
    let wrapper = [program.into_os_string()].into_iter().chain(arguments).collect();
    let setup = listening(&store, upstream.address, "127.0.0.1:0", "127.0.0.1:0").under(wrapper);
    let client = harness::Client { address };
    let request = client.post("/pay").key("k-1").body("10 EUR");
    let (proxy, first) = tokio::join!(setup.start(), eventually(TEST_TIMEOUT, async || request.try_send().await.ok()));
    assert_eq!(proxy.listen, address);
    assert_eq!((first.status, upstream.calls()), (201, 1));
}
