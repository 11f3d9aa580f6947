//! The contract of all stores. Each sentence runs against each store.

use store_contract::store_fixture::StoreFixture;
use store_contract::{contract, traps};

/// Makes each sentence a test for each store, one for PostgreSQL behind PgBouncer in transaction mode, one
/// there with traps in the schema `public`, and one for the store in memory of `tests/simulation`.
macro_rules! on_each_store {
    ($($chapter:ident { $($sentence:ident,)* })*) => {
        mod postgres {
            use super::*;
            $($(#[tokio::test] async fn $sentence() { contract::$sentence(StoreFixture::postgres().await).await })*)*
        }
        mod pgbouncer {
            use super::*;
            $($(#[tokio::test] async fn $sentence() {
                if let Some(world) = StoreFixture::pgbouncer().await {
                    contract::$sentence(world).await
                }
            })*)*
        }
        mod trapped {
            use super::*;
            $($(#[tokio::test] async fn $sentence() {
                if let Some(world) = StoreFixture::trapped().await {
                    contract::$sentence(world).await;
                    traps::assert_none_was_called(traps::database().await).await
                }
            })*)*
        }
        mod inline {
            use super::*;
            $($(#[tokio::test] async fn $sentence() { contract::$sentence(StoreFixture::inline().await).await })*)*
        }
        mod sqlite {
            use super::*;
            $($(#[tokio::test] async fn $sentence() { contract::$sentence(StoreFixture::sqlite().await).await })*)*
        }
    };
}
store_contract::sentences!(on_each_store);
