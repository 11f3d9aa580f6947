//! Clients that misuse HTTP/2, frame by frame: the connection ends or goes on, the memory stays, and others are served.

use std::fs;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use harness::{Store, TEST_TIMEOUT, World};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const FLOW_CONTROL_ERROR: u32 = 3;
const CANCEL: [u8; 4] = 8_u32.to_be_bytes();
const ENHANCE_YOUR_CALM: u32 = 11;

/// The growth of a process's memory that a flood may cause: far less than the frames that it sends.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `POST /` to `shop.example` by the static table of HPACK (RFC 7541, appendix A).
fn post() -> Vec<u8> {
    [&[0x83, 0x86, 0x84, 0x41, 12][..], b"shop.example"].concat()
}

/// The number of a client's stream.
fn stream(number: u32) -> u32 {
    2 * number + 1
}

/// Reads frames until the connection ends. Returns the reason that the server has given,
/// if any: a reset may overtake it.
async fn read_replies(mut reader: impl AsyncReadExt + Unpin) -> Option<u32> {
    let mut reason = None;
    let mut head = [0; 9];
    while reader.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            break;
        }
        if head[3] == GOAWAY {
            reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
    reason
}

/// An HTTP/2 connection whose frames are written by hand.
struct RawConnection {
    writer: tokio::io::WriteHalf<TcpStream>,
    replies: JoinHandle<Option<u32>>,
}

impl RawConnection {
    async fn open(world: &World) -> Self {
        let (reader, mut writer) = split(world.proxy.client().connect().await);
        writer.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()).await.unwrap();
        Self { writer, replies: tokio::spawn(read_replies(reader)) }
    }

    /// Writes frames until there are no more, or the server has closed the connection. Returns whether it has.
    async fn write(&mut self, frames: impl Iterator<Item = Vec<u8>>) -> bool {
        for frame in frames {
            let written = timeout(TEST_TIMEOUT, self.writer.write_all(&frame)).await.expect("the server reads");
            if written.is_err() || self.replies.is_finished() {
                return true;
            }
        }
        false
    }

    /// The server's reason, once it has closed the connection.
    async fn ended(mut self) -> Option<u32> {
        let _ = self.writer.shutdown().await;
        timeout(TEST_TIMEOUT, self.replies).await.expect("the connection ends").unwrap()
    }
}

/// The memory of the proxy in bytes.
fn resident_bytes(world: &World) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.proxy.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Checks that another client is served, and that the memory has not grown with the flood.
async fn assert_unharmed(world: &World, before: u64) {
    assert_eq!(world.pay("after-the-flood").send().await.oncegate_status(), Some("executed"));
    let after = resident_bytes(world);
    assert!(after < before + GROWTH_BYTES_MAX, "{before} bytes before the flood, {after} after it");
}

async fn world() -> (World, u64) {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("before-the-flood").send().await.status, 201);
    let before = resident_bytes(&world);
    (world, before)
}

#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    let (world, before) = world().await;
    let mut connection = RawConnection::open(&world).await;
    let resets = (0..100_000).map(|number| {
        let opened = frame(HEADERS, END_HEADERS | END_STREAM, stream(number), &post());
        [opened, frame(RST_STREAM, 0, stream(number), &CANCEL)].concat()
    });
    assert!(connection.write(resets).await, "the connection is closed before 100,000 resets");
    let goaway = connection.ended().await;
    assert!(goaway.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{goaway:?}");
    assert_unharmed(&world, before).await;
}

#[tokio::test]
async fn an_endless_field_block_ends_its_connection() {
    let (world, before) = world().await;
    let mut connection = RawConnection::open(&world).await;
    // Literal fields that are not added to the table: a name of 1 byte and a value of 100.
    let field = [&[0, 1, b'x', 100][..], &[b'v'; 100]].concat();
    let first = frame(HEADERS, END_STREAM, stream(0), &post());
    let more = (0..100_000).map(|_| frame(CONTINUATION, 0, stream(0), &field.repeat(100)));
    assert!(connection.write([first].into_iter().chain(more)).await, "the connection is closed before a gigabyte");
    let goaway = connection.ended().await;
    assert!(goaway.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{goaway:?}");
    assert_unharmed(&world, before).await;
}

#[tokio::test]
async fn pings_and_settings_without_end_hold_no_memory() {
    let (world, before) = world().await;
    let mut connection = RawConnection::open(&world).await;
    let frames = (0..50_000_u64).map(|number| {
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
        [frame(PING, 0, 0, &number.to_be_bytes()), settings].concat()
    });
    connection.write(frames).await;
    assert_unharmed(&world, before).await;
    connection.ended().await;
}

#[tokio::test]
async fn empty_data_frames_without_end_hold_no_memory() {
    let (world, before) = world().await;
    let mut connection = RawConnection::open(&world).await;
    let opened = frame(HEADERS, END_HEADERS, stream(0), &post());
    let empty = (0..100_000).map(|_| frame(DATA, 0, stream(0), b""));
    connection.write([opened].into_iter().chain(empty)).await;
    assert_unharmed(&world, before).await;
    connection.ended().await;
}

#[tokio::test]
async fn a_window_beyond_its_limit_ends_the_connection() {
    let (world, before) = world().await;
    for increment in [0x7fff_ffff_u32, 0] {
        let mut connection = RawConnection::open(&world).await;
        connection.write((0..2).map(|_| frame(WINDOW_UPDATE, 0, 0, &increment.to_be_bytes()))).await;
        let goaway = timeout(TEST_TIMEOUT, &mut connection.replies).await.expect("the connection ends").unwrap();
        // RFC 9113, section 6.9: an increment of zero is a protocol error.
        let expected = if increment == 0 { 1 } else { FLOW_CONTROL_ERROR };
        assert!(goaway.is_none_or(|code| code == expected), "{increment}: {goaway:?}");
    }
    assert_unharmed(&world, before).await;
}

#[tokio::test]
async fn others_are_served_beside_five_hundred_unfinished_bodies() {
    let (world, before) = world().await;
    let mut connections = Vec::new();
    for _ in 0..5 {
        let mut connection = RawConnection::open(&world).await;
        let opened = (0..100).map(|number| {
            let head = frame(HEADERS, END_HEADERS, stream(number), &post());
            [head, frame(DATA, 0, stream(number), b"x")].concat()
        });
        assert!(!connection.write(opened).await);
        connections.push(connection);
    }
    assert_unharmed(&world, before).await;
    for connection in connections {
        connection.ended().await;
    }
}
