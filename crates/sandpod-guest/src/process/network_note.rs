//! A note for commands that failed because the sandbox has no network.

use std::fs;

/// The note.
pub(super) const NO_NETWORK: &str = "this sandbox has no network";
/// The end of the output that is searched; programs write their error last.
const SEARCHED: usize = 4096;
/// Texts of programs and C libraries about hosts that cannot be resolved or reached, in lower case.
const ERRORS: [&str; 12] = [
    "network is unreachable",
    "could not resolve host",
    "couldn't resolve host",
    "unable to resolve host address",
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "name does not resolve",
    "failed to lookup address information",
    "getaddrinfo eai_again",
    "bad address '",
    "dial tcp: lookup ",
];

/// Returns the note for a command that failed with a network error, if the sandbox has no route to another host.
pub(super) fn network_note(exit_code: i32, output: &[u8]) -> Option<&'static str> {
    (exit_code != 0 && has_network_error(output) && !has_route()).then_some(NO_NETWORK)
}

fn has_network_error(output: &[u8]) -> bool {
    let end = &output[output.len().saturating_sub(SEARCHED)..];
    let end = String::from_utf8_lossy(end).to_ascii_lowercase();
    ERRORS.iter().any(|error| end.contains(error))
}

/// Returns the end of an output that [`network_note`] searches, for an output in pieces.
pub(super) fn searched<'a>(pieces: impl DoubleEndedIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut newest = Vec::new();
    let mut length = 0;
    for piece in pieces.rev() {
        newest.push(piece);
        length += piece.len();
        if length >= SEARCHED {
            break;
        }
    }
    newest.into_iter().rev().flatten().copied().collect()
}

/// Returns whether there is a route that is not only for this host. Without `/proc` one is assumed.
fn has_route() -> bool {
    let Ok(ipv4) = fs::read_to_string("/proc/net/route") else { return true };
    let ipv6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    is_routed(&ipv4, &ipv6)
}

/// Takes the files of the kernel: with the device in the first column after a header, and in the last column.
fn is_routed(ipv4: &str, ipv6: &str) -> bool {
    let is_other = |device: Option<&str>| device.is_some_and(|device| device != "lo");
    ipv4.lines().skip(1).any(|route| is_other(route.split_whitespace().next()))
        || ipv6.lines().any(|route| is_other(route.split_whitespace().next_back()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_common_programs_are_recognised() {
        for error in [
            "curl: (6) Could not resolve host: example.com",
            "fatal: unable to access 'https://example.com/': Could not resolve host: example.com",
            "wget: unable to resolve host address 'example.com'",
            "wget: bad address 'example.com'",
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "E: Failed to fetch http://deb.debian.org  Temporary failure resolving 'deb.debian.org'",
            "Error: getaddrinfo EAI_AGAIN registry.npmjs.org",
            "ping: connect: Network is unreachable",
            "dial tcp: lookup example.com on [::1]:53: read udp: connection refused",
        ] {
            assert!(has_network_error(error.as_bytes()), "{error}");
        }
        for other in ["", "ls: cannot access 'x': No such file or directory", "FAILED test_network.py"] {
            assert!(!has_network_error(other.as_bytes()), "{other}");
        }
        let early = format!("Network is unreachable\n{}", "x".repeat(SEARCHED));
        assert!(!has_network_error(early.as_bytes()), "the command went on");
    }

    #[test]
    fn only_a_route_of_another_device_is_a_network() {
        let head = "Iface\tDestination\tGateway\n";
        let loopback6 = "0001 80 00 00 00000100 00000002 00000000 80200001       lo\n";
        assert!(!is_routed(head, loopback6) && !is_routed("", ""));
        assert!(is_routed(&format!("{head}eth0\t00000000\t0100000A\n"), loopback6));
        assert!(is_routed(head, &loopback6.replace("lo", "eth0")));
    }

    #[test]
    fn the_newest_pieces_are_searched_in_their_order() {
        let large = vec![b'x'; SEARCHED];
        assert_eq!(searched([b"old".as_slice(), &large].into_iter()), large);
        assert_eq!(searched([b"a".as_slice(), b"b"].into_iter()), b"ab");
    }
}
