//! What this host says and hears by a GoBGP: routes of each network of the port, which is an EVPN
//! instance of its own (RFC 7432, 6.1: VLAN-based service; RFC 8365, 5.1.2), with a route
//! distinguisher and a route target. Routes have no Ethernet tag: their label says which network
//! they are of.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::bail;
use protocol::check;

use crate::bgp::{Distinguisher, Export, Import, Mobility, Route, Subject, Target, distinguisher};
use crate::fabric::Network;
use crate::gobgp::{Change, GoBgp, Path, Speaker};
use crate::grpc::CallError;
use crate::plan::{Announced, Todo};

/// Most routes of the networks, whatever host announces them. If there are more, none is looked at.
pub const ROUTES_MAX: usize = 1 << 18;

/// What the operator wants of BGP.
#[derive(Clone, Debug)]
pub struct BgpSettings {
    /// Address of GoBGP's gRPC interface.
    pub gobgp: SocketAddr,
    /// Route distinguisher; by default of the speaker and the VNI.
    pub distinguisher: Option<Distinguisher>,
    /// Route targets; by default of the VNI.
    pub targets: Vec<Target>,
}

impl BgpSettings {
    /// Checks that each network has a route distinguisher of its own.
    ///
    /// # Errors
    /// Two would have one.
    pub fn check(&self, networks: &[Network]) -> anyhow::Result<()> {
        let is_said = self.distinguisher.is_some() || !self.targets.is_empty();
        if is_said && networks.iter().any(|it| it.is_of_vlan) {
            bail!("--rd and --rt are for a port with one VNI, and this one has vlan_vni");
        }
        let mut seen = BTreeMap::new();
        for &Network { vni, .. } in networks {
            if let Some(other) = seen.insert(Distinguisher::of([0; 4], vni), vni) {
                bail!(
                    "VNIs {other} and {vni} have the same low 16 bits, and so one route \
                     distinguisher: give one of them another number"
                );
            }
        }
        Ok(())
    }
}

/// A GoBGP, and what is said and heard by it.
#[derive(Debug)]
pub struct Session {
    gobgp: GoBgp,
    policy: Policy,
}

impl Session {
    /// Connects, for the networks of a port, of which there is one at least.
    ///
    /// # Errors
    /// No GoBGP listens there, or BGP is not configured.
    pub fn open(settings: &BgpSettings, networks: &[Network]) -> Result<Self, CallError> {
        let mut gobgp = GoBgp::open(settings.gobgp)?;
        let speaker = gobgp.speaker()?;
        Ok(Self { gobgp, policy: Policy::new(settings, speaker, networks) })
    }

    /// A line for each network.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.policy.exports.values().map(|export| {
            let Export { vni, local, distinguisher, target } = export;
            format!(
                "VNI {vni} at {local}, route distinguisher {distinguisher}, route target {target}"
            )
        })
    }

    /// The routes of all networks.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn routes(&mut self) -> Result<Table, CallError> {
        let (mut table, policy) = (Table::default(), &self.policy);
        self.gobgp.paths(|path| table.add(policy, path))?;
        Ok(table)
    }

    /// Changes this host's routes in a network. Returns the refusal of one.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn change(&mut self, vni: u32, todo: &Todo) -> io::Result<Option<String>> {
        self.gobgp.change(&changes(&self.policy.exports[&vni], todo))
    }

    /// Reads what makes [`AsFd`] readable. Returns whether the table may have changed.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn read_event(&mut self) -> Result<bool, CallError> {
        self.gobgp.read_event()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.gobgp.as_fd()
    }
}

/// How this host announces routes, and which routes of others count.
#[derive(Debug)]
struct Policy {
    /// By VNI.
    exports: BTreeMap<u32, Export>,
    /// Has the same VNIs.
    import: Import,
}

impl Policy {
    fn new(settings: &BgpSettings, speaker: Speaker, networks: &[Network]) -> Self {
        let export = |&Network { vni, local, .. }: &Network| {
            let derived = || Distinguisher::of(speaker.router, vni);
            let distinguisher = settings.distinguisher.unwrap_or_else(derived);
            let target = settings.targets.first().copied();
            let target = target.unwrap_or_else(|| Target::of(speaker.asn, vni));
            (vni, Export { vni, local, distinguisher, target })
        };
        let vnis = networks.iter().map(|it| it.vni).collect();
        Self {
            exports: networks.iter().map(export).collect(),
            import: Import { vnis, targets: settings.targets.clone() },
        }
    }
}

/// The routes of a network.
#[derive(Debug, Default)]
pub struct NetworkRoutes {
    /// Routes of other hosts.
    pub others: Vec<Route>,
    /// Routes of this host.
    pub own: Announced,
}

/// What GoBGP has.
#[derive(Debug, Default)]
pub struct Table {
    /// By VNI.
    networks: BTreeMap<u32, NetworkRoutes>,
    /// How many routes of other hosts there are.
    seen: usize,
}

impl Table {
    /// Whether there are no more routes than are looked at.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.seen <= ROUTES_MAX
    }

    /// Takes the routes of a network out.
    pub fn take(&mut self, vni: u32) -> NetworkRoutes {
        self.networks.remove(&vni).unwrap_or_default()
    }

    /// The routes of other hosts in each network.
    pub fn routes_mut(&mut self) -> impl Iterator<Item = &mut Vec<Route>> {
        self.networks.values_mut().map(|routes| &mut routes.others)
    }

    fn add(&mut self, policy: &Policy, path: &Path<'_>) {
        if !path.is_local && !path.is_best {
            return;
        }
        let read = policy.import.route(path.nlri, &path.attributes);
        let Ok(Some((vni, route))) = read else { return };
        let (export, routes) = (&policy.exports[&vni], self.networks.entry(vni).or_default());
        if path.is_local {
            let is_own = distinguisher(path.nlri) == Some(export.distinguisher);
            if is_own && route.host == export.local {
                routes.own.insert(route.subject);
            }
            return;
        }
        self.seen += 1;
        if self.seen <= ROUTES_MAX && check::vxlan_remote(export.local, route.host).is_ok() {
            routes.others.push(route);
        }
    }
}

/// Changes of routes, as GoBGP gets them.
fn changes(export: &Export, todo: &Todo) -> Vec<Change> {
    let change = |subject, is_withdraw| Change { route: export.encode(subject), is_withdraw };
    // GoBGP compares the number of a route that goes, too.
    let without_number = |subject: &Subject| match *subject {
        Subject::Station(mac, _) => Subject::Station(mac, Mobility::default()),
        Subject::Neighbour(neighbour, _) => Subject::Neighbour(neighbour, Mobility::default()),
        Subject::Floods => Subject::Floods,
    };
    let withdraw = todo.withdraw.iter().map(|it| change(without_number(it), true));
    withdraw.chain(todo.announce.iter().map(|it| change(*it, false))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Instant;

    use packet::neigh::Neighbour;
    use packet::{MacAddr, VlanId};

    use super::*;
    use crate::plan::{Limits, Plan, Refused};

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);

    fn network(vni: u32) -> Network {
        let vlan = VlanId::new(u16::try_from(vni % 1000).expect("below 1000")).expect("a VLAN");
        Network { vni, local: IpAddr::from([10, 0, 0, 1]), vlan, is_of_vlan: true }
    }

    fn settings() -> BgpSettings {
        let gobgp = SocketAddr::from(([127, 0, 0, 1], 50_051));
        BgpSettings { gobgp, distinguisher: None, targets: Vec::new() }
    }

    /// What the speaker of a host says of these networks.
    fn policy(host: u8, vnis: &[u32]) -> Policy {
        let local = IpAddr::from([10, 0, 0, host]);
        let networks = vnis.iter().map(|&vni| Network { local, ..network(vni) });
        let speaker = Speaker { asn: 65_001, router: [10, 0, 0, host] };
        Policy::new(&settings(), speaker, &networks.collect::<Vec<_>>())
    }

    /// The routes of a host for a station and for floods, in this network.
    fn hear(table: &mut Table, at: &Policy, from: &Policy, vni: u32, is_local: bool) {
        let export = &from.exports[&vni];
        let announce = vec![Subject::Floods, Subject::Station(MAC, Mobility::default())];
        for Change { route, .. } in changes(export, &Todo { announce, ..Todo::default() }) {
            let attributes = route.attributes.iter().map(Vec::as_slice).collect();
            let path = Path { nlri: &route.nlri, attributes, is_local, is_best: true };
            table.add(at, &path);
        }
    }

    #[test]
    fn each_network_has_a_distinguisher_and_a_target_of_its_own() {
        let policy = policy(1, &[1010, 1020]);
        let said = policy.exports.values().map(|it| format!("{} {}", it.distinguisher, it.target));
        assert_eq!(
            said.collect::<Vec<_>>(),
            ["10.0.0.1:1010 65001:1010", "10.0.0.1:1020 65001:1020"]
        );
        let networks = [1010, 1010 + (1 << 16)].map(|vni| Network { vni, ..network(1010) });
        let error = settings().check(&networks).unwrap_err().to_string();
        assert!(error.contains("1010 and 66546 have the same low 16 bits"), "{error}");
        assert!(settings().check(&networks[..1]).is_ok());
        let said = BgpSettings { targets: vec![Target::of(65_001, 7)], ..settings() };
        assert!(said.check(&networks[..1]).unwrap_err().to_string().contains("--rt"));
        let alone = Network { is_of_vlan: false, ..networks[0] };
        assert!(said.check(&[alone]).is_ok());
    }

    #[test]
    fn routes_are_of_the_network_that_their_label_and_target_name() {
        let (one, two) = (policy(1, &[1010, 1020]), policy(2, &[1020, 1030]));
        let mut table = Table::default();
        hear(&mut table, &one, &one, 1010, true);
        hear(&mut table, &one, &two, 1020, false);
        hear(&mut table, &one, &two, 1030, false);
        assert!(table.is_whole() && table.seen == 2);
        assert_eq!(table.routes_mut().map(|routes| routes.len()).collect::<Vec<_>>(), [0, 2]);
        let NetworkRoutes { others, own } = table.take(1010);
        assert!(others.is_empty() && own.floods);
        assert_eq!(own.stations.keys().collect::<Vec<_>>(), [&MAC]);
        let NetworkRoutes { others, own } = table.take(1020);
        let host = IpAddr::from([10, 0, 0, 2]);
        let subjects = [Subject::Floods, Subject::Station(MAC, Mobility::default())];
        assert_eq!(others, subjects.map(|subject| Route { subject, host }));
        assert_eq!((own, table.take(1030).others.len()), (Announced::default(), 0));
    }

    const HOSTS: u8 = 100;
    const STATIONS: u16 = 500;

    /// What the hosts announce: each of their stations, and each with an IP address.
    fn announced() -> Vec<Change> {
        let mobility = Mobility::default();
        let of_host = |host: u8| {
            let policy = policy(host, &[1010]);
            let stations = (0..STATIONS).flat_map(move |station| {
                let [high, low] = station.to_be_bytes();
                let mac = MacAddr::new([2, 0, 0, host, high, low]);
                let ip = IpAddr::from([10, host, high + 1, low]);
                let neighbour = Neighbour { ip, mac, is_router: false };
                [Subject::Station(mac, mobility), Subject::Neighbour(neighbour, mobility)]
            });
            let announce = stations.chain([Subject::Floods]).collect();
            changes(&policy.exports[&1010], &Todo { announce, ..Todo::default() })
        };
        (2..2 + HOSTS).flat_map(of_host).collect()
    }

    /// Lets the plan of host 1 see these routes of others, as GoBGP would list them.
    fn see(plan: &mut Plan, at: &Policy, routes: &[Change], now: u64) -> Todo {
        let mut table = Table::default();
        for Change { route, .. } in routes {
            let attributes = route.attributes.iter().map(Vec::as_slice).collect();
            table.add(at, &Path { nlri: &route.nlri, attributes, is_local: false, is_best: true });
        }
        let NetworkRoutes { others, own } = table.take(1010);
        plan.see_routes(&others, own, now);
        let todo = plan.todo(now);
        plan.did_port(&todo);
        todo
    }

    /// Prints how long it takes: `cargo test --release -p uvala-evpn -- --nocapture hundred`.
    #[test]
    #[expect(clippy::print_stderr, reason = "a figure")]
    fn a_hundred_thousand_routes_are_followed_and_so_is_their_withdrawal() {
        let (at, routes) = (policy(1, &[1010]), announced());
        let limits = Limits {
            remotes: 256,
            stations: 65_536,
            neighbours: 65_536,
            announced: 65_536,
            hold_ms: 90_000,
        };
        let mut plan = Plan::new(IpAddr::from([10, 0, 0, 1]), limits);
        plan.find_port(&[], 0);
        plan.see_neighbours(Some((&[], &[])));
        let counts = |todo: &Todo| {
            [todo.add_stations.len(), todo.add_neighbours.len(), todo.del_stations.len()]
        };
        let all = usize::from(HOSTS) * usize::from(STATIONS);
        assert_eq!(routes.len(), 2 * all + usize::from(HOSTS));
        let start = Instant::now();
        assert_eq!(counts(&see(&mut plan, &at, &routes, 0)), [all, all, 0]);
        let learned = start.elapsed();
        assert_eq!(counts(&see(&mut plan, &at, &routes, 1)), [0; 3], "it is done");
        let again = start.elapsed() - learned;
        let todo = see(&mut plan, &at, &[], 2);
        let gone = start.elapsed() - learned - again;
        assert_eq!((counts(&todo), todo.del_neighbours.len()), ([0, 0, all], all));
        assert_eq!(plan.refused(), Refused::default());
        eprintln!(
            "{} routes: {learned:?} to follow them, {again:?} to see that nothing is new, {gone:?} \
             to follow their withdrawal",
            routes.len()
        );
    }
}
