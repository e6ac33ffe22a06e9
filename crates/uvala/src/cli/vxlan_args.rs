//! The options of a port of kind vxlan, and how listings show one.

use std::net::IpAddr;

use packet::{MacAddr, VlanId, VlanSet};
use protocol::parse;
use protocol::{
    PortKind, VlanVni, Vxlan, VxlanChange, VxlanInfo, VxlanKeys, VxlanRemote, VxlanStation,
};
use terminal::Usage;

use super::target::ip;

/// The tunnel of a port of kind vxlan.
#[derive(Debug, clap::Args)]
pub struct VxlanArgs {
    /// VXLAN network identifier, 0 to 16777215 (vxlan, which needs it or --vlan-vni)
    #[arg(long, value_name = "N", value_parser = parse::within(0..=0xff_ffff_u32))]
    vni: Option<u32>,
    /// VXLAN network identifiers of VLANs, whose frames have no tag in the tunnel, such as
    /// 10:1010,20:1020; for a trunk (vxlan)
    #[arg(long, value_name = "VLAN:VNI", value_delimiter = ',')]
    vlan_vni: Vec<VlanVni>,
    /// Address of this host for the tunnel (vxlan, which needs it)
    #[arg(long, value_name = "IP", value_parser = ip)]
    local: Option<IpAddr>,
    /// Address of another host of the tunnel; repeat for each (vxlan)
    #[arg(long, value_name = "IP", value_parser = ip)]
    remote: Vec<IpAddr>,
    /// UDP port of all hosts of the tunnel (vxlan) [default: 4789]
    #[arg(long, value_name = "PORT", value_parser = parse::within(1..=u16::MAX))]
    dst_port: Option<u16>,
    /// Time to live of the tunnel's packets (vxlan) [default: 64]
    #[arg(long, value_name = "N", value_parser = parse::within(1..=u8::MAX))]
    ttl: Option<u8>,
    /// Differentiated services code point of the tunnel's packets, 0 to 63 (vxlan) [default: 0]
    #[arg(long, value_name = "N", value_parser = parse::within(0..=63_u8))]
    dscp: Option<u8>,
    /// Forbid routers to fragment the tunnel's packets (vxlan) [default: true]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    df: Option<bool>,
    /// Answer ARP requests and neighbour solicitations for stations behind remotes (vxlan)
    /// [default: false]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    neigh_suppress: Option<bool>,
    /// Station behind a remote, which the port then neither learns nor forgets, such as
    /// 02:00:00:00:00:01=10.0.0.2; repeat for each (vxlan)
    #[arg(long, value_name = "MAC=REMOTE")]
    fdb: Vec<VxlanStation>,
}

impl VxlanArgs {
    /// The tunnel, if an option says something of one. `mtu` is of the frames inside.
    pub fn to_api(&self, kind: PortKind, mtu: Option<u32>) -> Result<Option<Vxlan>, Usage> {
        let Self { vni, local, dst_port, ttl, dscp, df, neigh_suppress, .. } = *self;
        let (vlan_vni, remote) = (self.vlan_vni.clone(), self.remote.clone());
        let fdb = self.fdb.clone();
        let keys = VxlanKeys {
            vni,
            vlan_vni,
            local,
            remote,
            dst_port,
            mtu,
            ttl,
            dscp,
            df,
            neigh_suppress,
            fdb,
        };
        match keys.tunnel() {
            Err(_) if kind != PortKind::Vxlan => Err(Usage(format!(
                "--vni, --local and the other options of a tunnel: not for kind {}, only for vxlan",
                kind.name()
            ))),
            tunnel => tunnel.map_err(Usage),
        }
    }
}

/// Changes of a port of kind vxlan.
#[derive(Debug, clap::Args)]
pub struct VxlanChangeArgs {
    /// Add a host to the tunnel; repeat for each (vxlan)
    #[arg(long, value_name = "IP", value_parser = ip)]
    add_remote: Vec<IpAddr>,
    /// Remove a host from the tunnel, with its stations; repeat for each (vxlan)
    #[arg(long, value_name = "IP", value_parser = ip)]
    del_remote: Vec<IpAddr>,
    /// Give VLANs of a trunk a VXLAN network identifier, such as 10:1010,20:1020 (vxlan)
    #[arg(long, value_name = "VLAN:VNI", value_delimiter = ',')]
    add_vlan_vni: Vec<VlanVni>,
    /// Take VLANs out of the tunnel, such as 10,20 (vxlan)
    #[arg(long, value_name = "VLAN", value_delimiter = ',')]
    del_vlan_vni: Vec<VlanId>,
    /// Set the host that a station is behind; repeat for each (vxlan)
    #[arg(long, value_name = "MAC=REMOTE")]
    add_fdb: Vec<VxlanStation>,
    /// Delete the entry of a station that was set; repeat for each (vxlan)
    #[arg(long, value_name = "MAC")]
    del_fdb: Vec<MacAddr>,
    /// Answer ARP requests and neighbour solicitations for stations behind remotes (vxlan)
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    neigh_suppress: Option<bool>,
}

impl VxlanChangeArgs {
    /// The changes, if there are any.
    pub fn to_api(&self) -> Option<Box<VxlanChange>> {
        let change = VxlanChange {
            all: None,
            add_remote: self.add_remote.clone(),
            del_remote: self.del_remote.clone(),
            add_vlan_vni: self.add_vlan_vni.clone(),
            del_vlan_vni: self.del_vlan_vni.iter().map(|vlan| vlan.get()).collect(),
            add_fdb: self.add_fdb.clone(),
            del_fdb: self.del_fdb.clone(),
            neigh_suppress: self.neigh_suppress,
            ..VxlanChange::default()
        };
        (change != VxlanChange::default()).then(|| Box::new(change))
    }
}

/// A tunnel's lines of `port show`.
pub fn show(info: &VxlanInfo) -> String {
    let mtu = match (info.mtu, info.path_mtu) {
        (None, _) => "unknown: no remote has a route".to_owned(),
        (Some(mtu), None) => format!("{mtu}, but no remote has a route"),
        (Some(mtu), Some(path)) if mtu > path => format!("{mtu}, but the routes leave {path}"),
        (Some(mtu), _) => mtu.to_string(),
    };
    let df = if info.df { ", not fragmented" } else { "" };
    let mut text = match info.vni {
        Some(vni) => format!("vni              {vni}\n"),
        None => String::new(),
    };
    for VlanVni { vlan, vni } in &info.vlan_vni {
        text += &format!("vni              {vni} of VLAN {vlan}\n");
    }
    text += &format!(
        "local            {}, UDP port {}\ninner mtu        {mtu}\n\
         packets          ttl {}, dscp {}{df}\n",
        info.local, info.dst_port, info.ttl, info.dscp
    );
    if info.remotes.is_empty() {
        text += "remote           none: add one with uvala port set --add-remote\n";
    }
    for remote in &info.remotes {
        let by = if remote.is_extern { ", from a routing daemon" } else { "" };
        let vlans: VlanSet = remote.vlans.iter().filter_map(|vlan| VlanId::new(*vlan)).collect();
        let of = match remote.vlans.is_empty() {
            true => String::new(),
            false => format!(" of VLAN {vlans}"),
        };
        let VxlanRemote { address, learned, .. } = remote;
        text += &format!("remote           {address}{of}, {learned} learned{by}\n");
    }
    for station in &info.fdb {
        text += &format!("fdb              {} behind {}\n", station.mac, station.remote);
    }
    if info.extern_learned > 0 {
        text += &format!("extern_learn     {} stations\n", info.extern_learned);
    }
    if let Some(neigh) = &info.neigh {
        text += &format!(
            "neigh_suppress   on, {} answered; {} local addresses, {} extern_learn\n",
            neigh.suppressed, neigh.local, neigh.extern_learned
        );
        if neigh.refused > 0 {
            text += &format!("                 {} local addresses had no room\n", neigh.refused);
        }
    }
    if let Some(trouble) = &info.trouble {
        text += &format!("trouble          {trouble}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli<T: clap::Args> {
        #[command(flatten)]
        of: T,
    }

    fn parsed<T: clap::Args>(words: &str) -> T {
        let words = ["port"].into_iter().chain(words.split_whitespace());
        <Cli<T> as clap::Parser>::try_parse_from(words).unwrap().of
    }

    fn add(words: &str) -> VxlanArgs {
        parsed(words)
    }

    fn set(words: &str) -> VxlanChangeArgs {
        parsed(words)
    }

    #[test]
    fn test_options_make_a_tunnel_or_say_what_is_missing() {
        let words = "--vni 100 --local 10.0.0.1 --remote 10.0.0.2 --remote 10.0.0.3 --df=false \
                   --fdb 02:00:00:00:00:01=10.0.0.2";
        let vxlan = add(words).to_api(PortKind::Vxlan, Some(1400)).unwrap().unwrap();
        assert_eq!((vxlan.vni, vxlan.remote.len(), vxlan.fdb.len()), (Some(100), 2, 1));
        assert_eq!((vxlan.df, vxlan.mtu, vxlan.udp_port()), (Some(false), Some(1400), 4789));
        assert!(!vxlan.neigh_suppress);
        assert!(add("").to_api(PortKind::Vxlan, None).unwrap().is_none());
        let on = add("--vni 1 --local 10.0.0.1 --neigh-suppress").to_api(PortKind::Vxlan, None);
        assert!(on.unwrap().unwrap().neigh_suppress);
        let map = add("--vlan-vni 10:1010,20:1020 --local 10.0.0.1").to_api(PortKind::Vxlan, None);
        let map = map.unwrap().unwrap();
        assert_eq!((map.vni, map.vnis().collect::<Vec<_>>()), (None, vec![1010, 1020]));
        let error = add("--remote 10.0.0.2").to_api(PortKind::Vxlan, None).unwrap_err();
        assert!(error.to_string().contains("--local 10.0.0.1"), "{error}");
        let error = add("--ttl 3").to_api(PortKind::Tap, None).unwrap_err();
        assert!(error.to_string().contains("not for kind tap, only for vxlan"), "{error}");
    }

    #[test]
    fn test_changes_are_sent_if_there_are_any() {
        assert_eq!(set("").to_api(), None);
        let off = set("--neigh-suppress=false");
        assert_eq!(off.to_api().unwrap().neigh_suppress, Some(false));
        let change = set("--add-remote 10.0.0.4 --del-fdb 02:00:00:00:00:01").to_api().unwrap();
        assert_eq!((change.add_remote.len(), change.del_fdb.len(), change.all), (1, 1, None));
        let change = set("--add-vlan-vni 30:1030 --del-vlan-vni 10,20").to_api().unwrap();
        assert_eq!((change.add_vlan_vni[0].vni, change.del_vlan_vni.len()), (1030, 2));
    }

    #[test]
    fn test_a_tunnel_without_remotes_says_how_to_add_one() {
        let info = r#"{"vni":1,"local":"10.0.0.1","dst_port":4789,"ttl":64,"dscp":0,"df":true,
            "remotes":[]}"#;
        let mut info: VxlanInfo = serde_json::from_str(info).unwrap();
        assert!(show(&info).contains("--add-remote") && show(&info).contains("no remote"));
        let address = "10.0.0.2".parse().unwrap();
        let (is_extern, vlans) = (false, Vec::new());
        info.remotes.push(VxlanRemote { address, learned: 3, is_extern, vlans });
        info.mtu = Some(1450);
        assert!(show(&info).contains("inner mtu        1450, but no remote has a route\n"));
        info.path_mtu = Some(1400);
        assert!(show(&info).contains("inner mtu        1450, but the routes leave 1400\n"));
        info.path_mtu = Some(1450);
        info.vlan_vni = vec!["10:1010".parse().unwrap()];
        assert!(show(&info).starts_with("vni              1\nvni              1010 of VLAN 10\nl"));
        info.neigh = Some(protocol::NeighInfo { suppressed: 7, local: 2, ..Default::default() });
        assert!(show(&info).contains("neigh_suppress   on, 7 answered; 2 local addresses"));
        assert!(show(&info).contains("inner mtu        1450\n"));
        assert!(show(&info).contains("remote           10.0.0.2, 3 learned\n"));
        (info.remotes[0].is_extern, info.remotes[0].vlans) = (true, vec![10, 11, 20]);
        let of_vlans = "10.0.0.2 of VLAN 10-11,20, 3 learned, from a routing daemon\n";
        assert!(show(&info).contains(of_vlans));
    }
}
