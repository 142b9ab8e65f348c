// A Java I2P router of a closed network, driven by lines.
//
//     java NetworkRouter DIRECTORY ADDRESS PORT I2CP_PORT IS_FLOODFILL
//
// `router.config` in DIRECTORY has the id of the network: the router ignores that property elsewhere.
// It prints "running", and one line for each line of its input:
//
//     store FILE              a router.info enters its network database: "stored"
//     state                   "peers=… inbound=… outbound=…"
//     local HASH              its own entry for a hash (base64): "absent", or "type=… verifies=… published=… HEX"
//     look HASH MS            the same after a look-up in the network
//     tunnel NAME PORT        a destination of its own whose streams lead to a port on loopback: its base64
//
// Every failure is one line that begins with "failed". The end of the input ends the process.
import java.io.*;
import java.lang.reflect.Field;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import net.i2p.client.I2PClientFactory;
import net.i2p.client.streaming.*;
import net.i2p.crypto.SigType;
import net.i2p.data.*;
import net.i2p.data.router.RouterInfo;
import net.i2p.router.*;

public class NetworkRouter {
    static RouterContext context;
    static Path directory;
    static int i2cpPort;

    static class Signal extends JobImpl {
        private final CountDownLatch done;
        Signal(CountDownLatch done) { super(context); this.done = done; }
        public String getName() { return "signal"; }
        public void runJob() { done.countDown(); }
    }

    static String entry(Hash hash) {
        LeaseSet found = context.netDb().lookupLeaseSetLocally(hash);
        if (found == null) return "absent";
        long published = found instanceof LeaseSet2 ? ((LeaseSet2) found).getPublished() / 1000 : 0;
        StringBuilder text = new StringBuilder(
            "type=" + found.getType() + " verifies=" + found.verifySignature() + " published=" + published + " ");
        for (byte each : found.toByteArray()) text.append(String.format("%02x", each));
        return text.toString();
    }

    static String look(Hash hash, int timeoutMs) throws InterruptedException {
        CountDownLatch done = new CountDownLatch(1);
        context.netDb().lookupLeaseSet(hash, new Signal(done), new Signal(done), timeoutMs);
        done.await(timeoutMs + 5000, TimeUnit.MILLISECONDS);
        return entry(hash);
    }

    static void copy(InputStream from, OutputStream to) {
        try {
            byte[] bytes = new byte[16384];
            for (int count; (count = from.read(bytes)) >= 0; ) {
                to.write(bytes, 0, count);
                to.flush();
            }
            to.close();
        } catch (IOException ended) {
            try { to.close(); } catch (IOException closed) { }
        }
    }

    static void start(Runnable body) {
        Thread thread = new Thread(body);
        thread.setDaemon(true);
        thread.start();
    }

    static void serve(I2PSocket stream, int port) {
        try {
            Socket service = new Socket("127.0.0.1", port);
            InputStream in = stream.getInputStream();
            OutputStream out = stream.getOutputStream();
            InputStream replies = service.getInputStream();
            OutputStream requests = service.getOutputStream();
            start(() -> copy(in, requests));
            start(() -> copy(replies, out));
        } catch (IOException refused) {
            try { stream.close(); } catch (IOException closed) { }
        }
    }

    static String tunnel(String name, int port) throws Exception {
        Path keys = directory.resolve(name + ".keys");
        if (!Files.exists(keys)) {
            ByteArrayOutputStream made = new ByteArrayOutputStream();
            I2PClientFactory.createClient().createDestination(made, SigType.EdDSA_SHA512_Ed25519);
            Files.write(keys, made.toByteArray());
        }
        Properties options = new Properties();
        for (String way : new String[] {"inbound", "outbound"}) {
            options.setProperty(way + ".length", "1");
            options.setProperty(way + ".lengthVariance", "0");
            options.setProperty(way + ".quantity", "2");
        }
        options.setProperty("i2cp.leaseSetEncType", "4");
        I2PSocketManager sockets =
            I2PSocketManagerFactory.createManager(Files.newInputStream(keys), "127.0.0.1", i2cpPort, options);
        if (sockets == null) throw new IOException("no session within the time of the library");
        I2PServerSocket listener = sockets.getServerSocket();
        start(() -> {
            try {
                while (true) {
                    I2PSocket stream = listener.accept();
                    if (stream != null) start(() -> serve(stream, port));
                }
            } catch (Exception ended) { }
        });
        return sockets.getSession().getMyDestination().toBase64();
    }

    static void permitPeers() {
        Banlist bans = context.banlist();
        try {
            while (true) {
                Thread.sleep(1000);
                for (Hash peer : context.netDb().getAllRouters())
                    if (bans.isBanlisted(peer)) bans.unbanlistRouter(peer);
            }
        } catch (InterruptedException ended) { }
    }

    static String reply(String[] words) throws Exception {
        switch (words[0]) {
            case "store":
                RouterInfo info = new RouterInfo();
                info.readBytes(new ByteArrayInputStream(Files.readAllBytes(Path.of(words[1]))));
                Hash hash = info.getIdentity().calculateHash();
                context.netDb().store(hash, info);
                // Without a profile, a router is not used for tunnels.
                context.profileManager().heardAbout(hash, info.getPublished());
                return "stored";
            case "state":
                return "peers=" + context.commSystem().countActivePeers()
                    + " inbound=" + context.tunnelManager().getFreeTunnelCount()
                    + " outbound=" + context.tunnelManager().getOutboundTunnelCount();
            case "local":
                return entry(new Hash(Base64.decode(words[1])));
            case "look":
                return look(new Hash(Base64.decode(words[1])), Integer.parseInt(words[2]));
            case "tunnel":
                return tunnel(words[1], Integer.parseInt(words[2]));
            default:
                return "failed: no such command";
        }
    }

    public static void main(String[] arguments) throws Exception {
        // The router redirects System.out to a file.
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        directory = Path.of(arguments[0]);
        i2cpPort = Integer.parseInt(arguments[3]);
        String[][] settings = {
            {"i2p.dir.base", arguments[0]}, {"i2p.dir.config", arguments[0]}, {"i2p.dir.router", arguments[0]},
            {"i2cp.hostname", "127.0.0.1"}, {"i2cp.port", arguments[3]}, {"i2np.allowLocal", "true"},
            {"router.reseedDisable", "true"}, {"time.disabled", "true"}, {"i2np.ntcp.hostname", arguments[1]},
            {"i2np.ntcp.port", arguments[2]}, {"i2np.ntcp.autoip", "false"}, {"i2np.ntcp.autoport", "false"},
            {"i2np.ntcp.enable", "true"}, {"i2np.udp.enable", "false"}, {"i2np.upnp.enable", "false"},
            {"i2np.ipv6", "false"}, {"router.floodfillParticipant", arguments[4]}, {"router.hiddenMode", "false"},
            {"i2np.bandwidth.inboundKBytesPerSecond", "2048"}, {"i2np.bandwidth.outboundKBytesPerSecond", "2048"},
            {"router.sharePercentage", "80"}, {"router.inboundPool.length", "1"}, {"router.outboundPool.length", "1"},
            {"router.inboundPool.lengthVariance", "0"}, {"router.outboundPool.lengthVariance", "0"},
            {"router.blocklist.enable", "false"}, {"router.updateDisabled", "true"}
        };
        Properties properties = new Properties();
        for (String[] each : settings) {
            properties.setProperty(each[0], each[1]);
            System.setProperty(each[0], each[1]);
        }
        Router router =
            new Router(properties);
        router.setKillVMOnEnd(false);
        router.runRouter();
        context = router.getContext();
        // A router refuses tunnels in the first minutes; its setting permits at least 90 s.
        Field refusal = RouterThrottleImpl.class.getDeclaredField("_rejectStartupTime");
        refusal.setAccessible(true);
        refusal.setLong(context.throttle(), 0);
        for (int tries = 0; tries < 300; tries++) {
            try {
                new Socket("127.0.0.1", i2cpPort).close();
                break;
            } catch (IOException closed) {
                Thread.sleep(100);
            }
        }
        // A router bans a peer that it cannot reach for 7 to 9 minutes. There are only three other Java routers, so
        // a router that returns could not build tunnels until then.
        start(NetworkRouter::permitPeers);
        out.println("running");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            try {
                out.println(reply(line.trim().split(" ")));
            } catch (Throwable failure) {
                out.println("failed: " + failure);
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
