// A Java I2P router with its I2CP port on loopback and without a network: its messages to other routers are dropped.
//
//     java LoopbackRouter DIRECTORY PORT [PASSWORD]
//
// With a password, its I2CP accepts only the user "farm".
// It prints "running", and for each hash (base64) on its input the entry of its network database:
// "absent", or "type=… verifies=… HEX".
import java.io.*;
import java.lang.reflect.Field;
import java.util.Properties;
import net.i2p.data.*;
import net.i2p.router.Router;
import net.i2p.router.RouterContext;
import net.i2p.router.dummy.VMCommSystem;
import net.i2p.router.util.RouterPasswordManager;

public class LoopbackRouter {
    // With the plain context, the client manager does not create sessions.
    static class Nowhere extends VMCommSystem {
        Nowhere(RouterContext context) { super(context); }
        @Override public boolean isDummy() { return false; }
    }

    static String told(RouterContext context, Hash hash) {
        LeaseSet found = context.clientNetDb(hash).lookupLeaseSetLocally(hash);
        if (found == null) found = context.netDb().lookupLeaseSetLocally(hash);
        if (found == null) return "absent";
        StringBuilder text = new StringBuilder("type=" + found.getType() + " verifies=" + found.verifySignature() + " ");
        for (byte each : found.toByteArray()) text.append(String.format("%02x", each));
        return text.toString();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        String[][] settings = {
            {"i2p.dir.base", arguments[0]}, {"i2p.dir.config", arguments[0]}, {"i2cp.hostname", "127.0.0.1"},
            {"i2cp.port", arguments[1]}, {"i2p.vmCommSystem", "true"}, {"router.reseedDisable", "true"},
            {"time.disabled", "true"}, {"router.isHidden", "true"}
        };
        Properties properties = new Properties();
        for (String[] each : settings) {
            properties.setProperty(each[0], each[1]);
            System.setProperty(each[0], each[1]);
        }
        Router router = new Router(properties);
        router.setKillVMOnEnd(false);
        router.runRouter();
        Field communication = RouterContext.class.getDeclaredField("_commSystem");
        communication.setAccessible(true);
        communication.set(router.getContext(), new Nowhere(router.getContext()));
        for (int tries = 0; tries < 200; tries++) {
            try (java.net.Socket probe = new java.net.Socket("127.0.0.1", Integer.parseInt(arguments[1]))) {
                break;
            } catch (IOException closed) {
                Thread.sleep(100);
            }
        }
        if (arguments.length > 2) {
            new RouterPasswordManager(router.getContext()).saveHash("i2cp.auth", "farm", arguments[2]);
            router.saveConfig("i2cp.auth", "true");
        }
        out.println("running");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null)
            out.println(told(router.getContext(), new Hash(Base64.decode(line))));
        Runtime.getRuntime().halt(0);
    }
}
