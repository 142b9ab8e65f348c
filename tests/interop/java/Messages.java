// I2CP, read and written by the Java I2P classes.
//
//     java Messages read    each line of the input is a stream of frames in hexadecimal; prints the
//                           messages that I2CPMessageReader reads, one per line, then "end"
//     java Messages write   prints messages of a router in hexadecimal, with their meaning
import java.io.*;
import java.util.Date;
import net.i2p.data.*;
import net.i2p.data.i2cp.*;

public class Messages {
    static PrintStream out;

    static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        return found;
    }

    static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte each : data) text.append(String.format("%02x", each));
        return text.toString();
    }

    static String told(I2CPMessage message) {
        if (message instanceof CreateSessionMessage) {
            SessionConfig config = ((CreateSessionMessage) message).getSessionConfig();
            return "CreateSession verifies=" + config.verifySignature() + " destination="
                + config.getDestination().toBase32() + " type=" + config.getOptions().getProperty("i2cp.leaseSetType")
                + " offline=" + (config.getTransientSigningPublicKey() != null);
        }
        if (message instanceof CreateLeaseSet2Message) {
            CreateLeaseSet2Message created = (CreateLeaseSet2Message) message;
            LeaseSet structure = created.getLeaseSet();
            return "CreateLeaseSet2 session=" + created.getSessionId().getSessionId() + " type=" + structure.getType()
                + " verifies=" + structure.verifySignature() + " leases=" + structure.getLeaseCount();
        }
        if (message instanceof GetDateMessage) {
            GetDateMessage asked = (GetDateMessage) message;
            return "GetDate version=" + asked.getVersion() + " options="
                + (asked.getOptions() == null ? 0 : asked.getOptions().size());
        }
        if (message instanceof HostLookupMessage) {
            HostLookupMessage asked = (HostLookupMessage) message;
            return "HostLookup session=" + asked.getSessionId().getSessionId() + " request=" + asked.getReqID()
                + " timeout=" + asked.getTimeout() + " hash=" + hex(asked.getHash().getData());
        }
        if (message instanceof DestroySessionMessage)
            return "DestroySession session=" + ((DestroySessionMessage) message).getSessionId().getSessionId();
        if (message instanceof DisconnectMessage)
            return "Disconnect reason=" + ((DisconnectMessage) message).getReason();
        return "other " + message.getType();
    }

    static void read(String stream) throws Exception {
        // The cache of destinations may return another destination with the same key but other padding.
        Destination.clearCache();
        final java.util.concurrent.CountDownLatch over = new java.util.concurrent.CountDownLatch(1);
        I2CPMessageReader reader = new I2CPMessageReader(new ByteArrayInputStream(bytes(stream)),
            new I2CPMessageReader.I2CPMessageEventListener() {
                public void messageReceived(I2CPMessageReader from, I2CPMessage message) { out.println(told(message)); }
                public void readError(I2CPMessageReader from, Exception error) {
                    if (!(error instanceof EOFException)) out.println("error " + error);
                    over.countDown();
                }
                public void disconnected(I2CPMessageReader from) { over.countDown(); }
            });
        reader.startReading();
        over.await(20, java.util.concurrent.TimeUnit.SECONDS);
        out.println("end");
    }

    static void write(String name, I2CPMessageImpl message) throws Exception {
        ByteArrayOutputStream data = new ByteArrayOutputStream();
        message.writeMessage(data);
        out.println(name + " " + hex(data.toByteArray()));
    }

    static void writeAll() throws Exception {
        SetDateMessage date = new SetDateMessage("0.9.64");
        date.setDate(new Date(1767225600000L));
        write("SetDate", date);
        SessionId session = new SessionId(4660);
        for (int status = 0; status <= 5; status++) {
            SessionStatusMessage message = new SessionStatusMessage();
            message.setSessionId(session);
            message.setStatus(status);
            write("SessionStatus" + status, message);
        }
        byte[] destination = new byte[391];
        for (int i = 0; i < 352; i++) destination[i] = (byte) (0xa0 + i % 32);
        System.arraycopy(bytes("79b5562e8fe654f94078b112e8a98ba7901f853ae695bed7e0e3910bad04966405000400070000"), 0,
            destination, 352, 39);
        Destination.clearCache();
        write("HostReply0", new HostReplyMessage(session, Destination.create(new ByteArrayInputStream(destination)), 77));
        for (int result = 1; result <= 5; result++) write("HostReply" + result, new HostReplyMessage(session, result, 77));
        RequestVariableLeaseSetMessage request = new RequestVariableLeaseSetMessage();
        request.setSessionId(session);
        for (int i = 1; i <= 2; i++) {
            Lease lease = new Lease();
            lease.setGateway(new Hash(java.util.Arrays.copyOf(new byte[] {(byte) i}, 32)));
            lease.setTunnelId(new TunnelId(i));
            lease.setEndDate(1767226200000L);
            request.addEndpoint(lease);
        }
        write("RequestVariableLeaseSet", request);
        DisconnectMessage end = new DisconnectMessage();
        end.setReason("Router is shutting down");
        write("Disconnect", end);
        write("BandwidthLimits", new BandwidthLimitsMessage(32, 16));
    }

    public static void main(String[] arguments) throws Exception {
        // The library also writes to standard output.
        out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        System.setOut(System.err);
        if (arguments[0].equals("write")) {
            writeAll();
            return;
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null) read(line);
        System.exit(0);
    }
}
