//! The contract of all stores on the database of `ONCEGATE_TEST_STORE_URL`. **It drops the schema `oncegate` there.**
//! Without that variable nothing runs.

use store_contract::contract;
use store_contract::store_fixture::StoreFixture;

macro_rules! tests {
    ($($chapter:ident { $($sentence:ident,)* })*) => {
        $($(#[tokio::test] async fn $sentence() {
            if let Some(world) = StoreFixture::given().await {
                contract::$sentence(world).await
            }
        })*)*
    };
}
store_contract::sentences!(tests);
