//! A listener whose queue of connections is full: the kernel finishes the next connection when there is room.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{TEST_TIMEOUT, eventually};

pub struct FullListener {
    pub address: SocketAddr,
    listener: TcpListener,
    queued: Vec<TcpStream>,
}

impl FullListener {
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        Self { address, listener, queued }
    }

    /// Waits until a client is connecting: its SYN was sent and not answered.
    pub async fn client_is_connecting(&self) {
        let to = format!(":{:04X}", self.address.port());
        eventually(TEST_TIMEOUT, async || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            sockets.any(|socket| socket[2].ends_with(&to) && socket[3] == "02").then_some(())
        })
        .await;
    }

    /// Makes room, and accepts the client's connection.
    pub async fn accept_client(&self) -> TcpStream {
        for _ in 0..self.queued.len() {
            self.listener.accept().await.unwrap();
        }
        timeout(TEST_TIMEOUT, self.listener.accept()).await.unwrap().unwrap().0
    }
}
