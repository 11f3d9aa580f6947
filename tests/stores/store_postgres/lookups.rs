//! Look-ups of large responses.

use futures_util::future::join_all;
use oncegate_domain::record::Record;
use oncegate_domain::state::KeyState;
use oncegate_store::{self as store, StoreSettings};

use harness::database_link::DatabaseLink;
use harness::postgres;
use harness::store_fixture::{StoreFixture, completion, new_reserve_request, unwrap_lease};

const MIB: usize = 1024 * 1024;

fn body(record: Option<Record>) -> Option<bytes::Bytes> {
    match record?.state {
        KeyState::Completed(completed) => completed.response.body.clone(),
        state => panic!("{state:?}"),
    }
}

/// Completes so many keys with a response of 1 MiB.
async fn complete_large(world: &StoreFixture, count: u8) -> Vec<oncegate_domain::attempt::ReserveRequest> {
    let reserve_requests: Vec<_> = (0..count).map(|n| new_reserve_request(&format!("k-{n}"))).collect();
    join_all(reserve_requests.iter().zip(0..).map(async |(reserve_request, n)| {
        world.reserve(reserve_request).await;
        world.settle(completion(reserve_request, &vec![n; MIB])).await;
    }))
    .await;
    reserve_requests
}

#[tokio::test]
async fn many_large_responses_come_in_results_of_bounded_size() {
    let world = StoreFixture::postgres().await;
    let reserve_requests = complete_large(&world, 40).await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let found = join_all(reserve_requests.iter().map(|reserve_request| store.find(reserve_request.id))).await;
    for (found, n) in found.into_iter().zip(0..) {
        assert!(body(found.unwrap()).unwrap() == vec![n; MIB], "{n}");
    }
    let largest = link.largest_reply();
    assert!((2 * MIB..9 * MIB).contains(&largest), "{largest}");
}

#[tokio::test]
async fn large_responses_take_no_connection_from_reservations_and_settlements() {
    let world = StoreFixture::postgres().await;
    let reserve_requests = complete_large(&world, 10).await;
    let link = DatabaseLink::to(world.database()).await;
    for max_connections in [6, 7, 8] {
        let settings = StoreSettings { max_connections, ..postgres::settings(&link.url) };
        let store = store::open(&settings).await.unwrap();
        link.stall_replies_from(MIB / 2);
        let finds = join_all(reserve_requests.iter().map(|reserve_request| store.find(reserve_request.id)));
        let others = async {
            link.reply_stalled().await;
            let more: Vec<_> = (0..20).map(|n| new_reserve_request(&format!("{max_connections}-{n}"))).collect();
            join_all(more.iter().map(async |reserve_request| {
                unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
                store.settle(completion(reserve_request, b"")).await.unwrap();
            }))
            .await;
            link.stall_replies_from(usize::MAX);
        };
        let (found, ()) = futures_util::future::join(finds, others).await;
        for (found, n) in found.into_iter().zip(0..) {
            assert!(body(found.unwrap()).unwrap() == vec![n; MIB], "{n}");
        }
    }
}
