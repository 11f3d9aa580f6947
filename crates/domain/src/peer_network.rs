//! The addresses that count as one peer.

use std::net::IpAddr;

/// The address that counts as one peer: an IPv6 host has a whole /64 network for itself (RFC 4291, section 2.5.4).
pub fn peer_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_ipv6_network_is_one_peer_and_a_mapped_address_is_its_ipv4_address() {
        assert_eq!(peer_network(address("2001:db8:1:2:3:4:5:6")), address("2001:db8:1:2::"));
        assert_eq!(peer_network(address("::ffff:10.0.0.1")), address("10.0.0.1"));
    }
}
