// Connections of the Java router come from the router's own address, the property `network.address`.
//
// All routers share one loopback device, so the kernel would choose the destination as the source. A Java router bans
// peers whose source differs from the address in their description. `java.nio.channels.spi.SelectorProvider` names this
// class; `--add-exports java.base/sun.nio.ch=ALL-UNNAMED` gives it the provider of the JDK.
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ProtocolFamily;
import java.nio.channels.DatagramChannel;
import java.nio.channels.Pipe;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.channels.spi.AbstractSelector;
import java.nio.channels.spi.SelectorProvider;

public class BoundChannels extends SelectorProvider {
    private final SelectorProvider provider;

    public BoundChannels() throws ReflectiveOperationException {
        Object found = Class.forName("sun.nio.ch.DefaultSelectorProvider").getMethod("get").invoke(null);
        provider = (SelectorProvider) found;
    }

    @Override public SocketChannel openSocketChannel() throws IOException {
        return provider.openSocketChannel().bind(new InetSocketAddress(System.getProperty("network.address"), 0));
    }

    @Override public DatagramChannel openDatagramChannel() throws IOException { return provider.openDatagramChannel(); }

    @Override public DatagramChannel openDatagramChannel(ProtocolFamily family) throws IOException {
        return provider.openDatagramChannel(family);
    }

    @Override public Pipe openPipe() throws IOException { return provider.openPipe(); }

    @Override public AbstractSelector openSelector() throws IOException { return provider.openSelector(); }

    @Override public ServerSocketChannel openServerSocketChannel() throws IOException {
        return provider.openServerSocketChannel();
    }
}
